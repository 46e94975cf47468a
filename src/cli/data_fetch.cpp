// SPDX-License-Identifier: Apache-2.0
#include "cli/data_fetch.h"

#include <CLI/CLI.hpp>
#include <cstdio>

#include "cli/fetch_progress.h"
#include "tasks/fetch/byte_text.h"
#include "tasks/fetch/sources.h"

namespace fmmformer::cli {
namespace {

using tasks::fetch::byte_text;
using tasks::fetch::DataSource;
using tasks::fetch::Downloaded;
using tasks::fetch::RemoteFile;
using tasks::fetch::Trust;
using tasks::fetch::Unpacked;

struct FetchOptions {
  std::vector<std::string> tasks;
  std::string out = "data/downloads";
  std::string mirror;
  bool list = false;
};

void add_options(CLI::App& app, FetchOptions& options) {
  app.add_option("TASK", options.tasks, "one or more of those that --list names");
  app.add_option("--out", options.out, "where archives and what is unpacked of them go")
      ->type_name("FOLDER")
      ->capture_default_str();
  app.add_option("--mirror", options.mirror,
                 "ask this address first: a folder with the archive, or the archive itself")
      ->type_name("URL");
  app.add_flag("--list", options.list, "what there is: sizes, addresses, checksums, licences");
  app.footer(
      "What broke off goes on when the same command is run again. An archive that is in FOLDER\n"
      "already is verified and not fetched again, whoever brought it there. Proxies are taken "
      "from\n"
      "the environment (https_proxy).\n\n"
      "Examples:\n"
      "  fmmformer data fetch --list\n"
      "  fmmformer data fetch image\n"
      "  fmmformer data fetch listops retrieval pathfinder --out /big/disk\n"
      "  fmmformer data fetch text --mirror http://mirror.example/sets");
}

std::string size_of(const DataSource& source) {
  const RemoteFile& file = source.archive;
  return file.size > 0 ? byte_text(file.size) : "about " + byte_text(source.about_bytes);
}

void print_source(const DataSource& source) {
  const RemoteFile& file = source.archive;
  std::printf("%-13s %s\n", source.task.c_str(), source.what.c_str());
  std::printf("  archive     %s, %s\n", file.name.c_str(), size_of(source).c_str());
  std::printf("  sha256      %s\n", file.sha256.empty()
                                        ? "not published; that of the first fetch is recorded"
                                        : file.sha256.c_str());
  for (const std::string& address : file.addresses)
    std::printf("  from        %s\n", address.c_str());
  std::printf("  licence     %s\n  cite        %s\n\n", source.licence.c_str(),
              source.citation.c_str());
}

const char* trust_text(Trust trust) {
  switch (trust) {
    case Trust::kPublished:
      return "as published";
    case Trust::kRecorded:
      return "as at the first fetch";
    case Trust::kFirstUse:
      return "recorded: none is published to compare with";
  }
  return "";
}

void print_result(const DataSource& source, const Downloaded& archive, const Unpacked& unpacked) {
  std::printf("%-13s %s\n", source.task.c_str(), source.what.c_str());
  std::printf("  archive     %s, %s%s\n", archive.path.c_str(), byte_text(archive.size).c_str(),
              archive.address.empty() ? ", was there" : "");
  if (!archive.address.empty()) std::printf("  from        %s\n", archive.address.c_str());
  std::printf("  sha256      %s (%s)\n", archive.sha256.c_str(), trust_text(archive.trust));
  if (unpacked.was_there) {
    std::printf("  unpacked    %s, was there\n", unpacked.folder.c_str());
  } else {
    std::printf("  unpacked    %s, %s in %lld files\n", unpacked.folder.c_str(),
                byte_text(unpacked.bytes).c_str(), static_cast<long long>(unpacked.files));
  }
  std::printf("  licence     %s\n  cite        %s\n", source.licence.c_str(),
              source.citation.c_str());
}

/// For a shell: quoted only where it has to be.
std::string shell_text(const std::string& path) {
  const bool plain = path.find_first_of(" \t'\"\\$&;|<>()*?#~`!") == std::string::npos;
  return plain ? path : "'" + path + "'";
}

void print_next_steps(const std::vector<const DataSource*>& sources, const FetchOptions& options,
                      const std::string& program) {
  const char* heading = "\nNext:\n";
  for (const DataSource* source : sources) {
    const std::filesystem::path folder = std::filesystem::path(options.out) / source->import_folder;
    std::printf("%s  %s data import %s %s\n", heading, program.c_str(), source->task.c_str(),
                shell_text(folder.string()).c_str());
    heading = "";
  }
}

void fetch(const DataSource& source, const FetchOptions& options) {
  namespace fetch = tasks::fetch;
  const RemoteFile file =
      options.mirror.empty() ? source.archive : fetch::with_mirror(source.archive, options.mirror);
  Downloaded archive;
  Unpacked unpacked;
  {
    FetchProgress progress(file.name);
    archive = fetch::download(file, {.folder = options.out}, progress.listener());
    unpacked = fetch::unpack(archive.path, source.selection, options.out, progress.listener());
  }
  print_result(source, archive, unpacked);
}

}  // namespace

int run_data_fetch(const CommandLine& line) {
  FetchOptions options;
  CLI::App app(
      "Fetches the public data sets that the tasks learn from, verifies and unpacks them.");
  add_options(app, options);
  if (!read_options(app, line)) return kDone;
  if (options.list) {
    for (const DataSource& source : tasks::fetch::data_sources()) print_source(source);
    return kDone;
  }
  if (options.tasks.empty()) throw UsageError("name a task, or ask what there is with --list");
  std::vector<const DataSource*> sources;  // all names are looked up before gigabytes come
  for (const std::string& task : options.tasks) {
    sources.push_back(&tasks::fetch::data_source(task));
  }
  for (const DataSource* source : sources) fetch(*source, options);
  print_next_steps(sources, options, line.program);
  return kDone;
}

}  // namespace fmmformer::cli

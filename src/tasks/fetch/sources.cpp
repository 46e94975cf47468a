// SPDX-License-Identifier: Apache-2.0
#include "tasks/fetch/sources.h"

#include <stdexcept>
#include <vector>

#include "fmmformer/core/named_enum.h"

namespace fmmformer::tasks::fetch {
namespace {

// The release of the Long Range Arena: ListOps, the AAN pairs and all of Pathfinder in one file.
// Its address is that of google-research/long-range-arena's README. Nobody has published a checksum
// of it.
RemoteFile lra_release() {
  return {.name = "lra_release.gz",
          .addresses = {"https://storage.googleapis.com/long-range-arena/lra_release.gz"}};
}
constexpr int64_t kLraBytes = 8'230'000'000;  // as its downloaders report; 18.6 GB unpacked
constexpr char kLraCitation[] =
    "Tay et al., Long Range Arena: A Benchmark for Efficient Transformers, ICLR 2021";

DataSource listops() {
  return {
      .task = "listops",
      .what = "nested operations on digits, 96,000 / 2,000 / 2,000 (LRA release)",
      .archive = lra_release(),
      .selection = {"listops-1000", {"basic_train.tsv", "basic_val.tsv", "basic_test.tsv"}},
      .import_folder = "listops-1000",
      .licence = "none of its own; its generator (google-research/long-range-arena) is Apache-2.0",
      .citation = std::string(kLraCitation) + "; Nangia and Bowman, NAACL-SRW 2018",
      .about_bytes = kLraBytes};
}

DataSource retrieval() {
  return {
      .task = "retrieval",
      .what = "pairs of papers, does one cite the other, 147,086 / 18,090 / 17,437 (LRA release)",
      .archive = lra_release(),
      .selection = {"tsv_data",
                    {"new_aan_pairs.train.tsv", "new_aan_pairs.eval.tsv",
                     "new_aan_pairs.test.tsv"}},
      .import_folder = "tsv_data",
      .licence = "none stated for the papers' texts; ask the ACL Anthology Network",
      .citation = std::string(kLraCitation) + "; Radev et al., LRE 2013",
      .about_bytes = kLraBytes};
}

DataSource pathfinder() {
  return {.task = "pathfinder",
          .what = "200,000 images of 32 x 32, are two dots on one path, hard (LRA release)",
          .archive = lra_release(),
          .selection = {"pathfinder32",
                        {"curv_contour_length_14/imgs/", "curv_contour_length_14/metadata/"}},
          .import_folder = "pathfinder32/curv_contour_length_14",
          .licence = "none of its own; its generator (drewlinsley/pathfinder) is MIT",
          .citation = std::string(kLraCitation) + "; Linsley et al., NeurIPS 2018",
          .about_bytes = kLraBytes};
}

// Size and checksum: tensorflow/datasets, url_checksums/imdb_reviews.txt. Second address: the copy
// that PaddlePaddle's loader uses, under the md5 that torchtext publishes for the first.
DataSource text() {
  return {
      .task = "text",
      .what = "IMDb reviews as bytes, 25,000 / 25,000",
      .archive = {.name = "aclImdb_v1.tar.gz",
                  .addresses = {"https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
                                "https://dataset.bj.bcebos.com/imdb%2FaclImdb_v1.tar.gz"},
                  .size = 84'125'825,
                  .sha256 = "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe"},
      .selection = {"aclImdb", {"train/pos/", "train/neg/", "test/pos/", "test/neg/"}},
      .import_folder = "aclImdb",
      .licence = "none stated; its authors ask to be cited",
      .citation = "Maas et al., Learning Word Vectors for Sentiment Analysis, ACL 2011"};
}

// Size and checksum: tensorflow/datasets, url_checksums/cifar10.txt. Second address: the copy that
// tensorflow/swift-models tests with.
DataSource image() {
  return {.task = "image",
          .what = "CIFAR-10, photographs of 32 x 32 in ten classes, 50,000 / 10,000",
          .archive = {.name = "cifar-10-binary.tar.gz",
                      .addresses = {"https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                                    "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/"
                                    "CIFAR10/cifar-10-binary.tar.gz"},
                      .size = 170'052'171,
                      .sha256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
          .selection = {"cifar-10-batches-bin",
                        {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                         "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"}},
          .import_folder = "cifar-10-batches-bin",
          .licence = "none stated; its author asks to be cited",
          .citation = "Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"};
}

// Checksums: dellison/LanguageModelingDatasets.jl, src/wikitext.jl. The address that they are of,
// in the bucket research.metamind.io, has answered 403 since 2024 (pytorch/text, issue 2255). The
// author's own copy is the first here; the second is what the Internet Archive has kept of the old
// one.
DataSource wikitext(const std::string& size, const std::string& sha256, int64_t about_bytes) {
  const std::string name = "wikitext-" + size;
  const std::string file = name + "-v1.zip";
  return {.task = name,
          .what = "words of Wikipedia's good articles, " +
                  std::string(size == "2" ? "2 million" : "103 million"),
          .archive = {.name = file,
                      .addresses = {"https://wikitext.smerity.com/" + file,
                                    "https://web.archive.org/web/2020id_/https://s3.amazonaws.com/"
                                    "research.metamind.io/wikitext/" +
                                        file},
                      .sha256 = sha256},
          .selection = {name, {"wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"}},
          .import_folder = name,
          .licence = "CC BY-SA 3.0 (Wikipedia)",
          .citation = "Merity et al., Pointer Sentinel Mixture Models, ICLR 2017",
          .about_bytes = about_bytes};
}

std::vector<DataSource> all_sources() {
  return {
      listops(),
      text(),
      retrieval(),
      image(),
      pathfinder(),
      wikitext("2", "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c", 4'500'000),
      wikitext("103", "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
               190'000'000)};
}

}  // namespace

std::span<const DataSource> data_sources() {
  static const std::vector<DataSource> kSources = all_sources();
  return kSources;
}

const DataSource& data_source(std::string_view task) {
  std::vector<std::string> names;
  for (const DataSource& source : data_sources()) {
    if (source.task == task) return source;
    names.push_back(source.task);
  }
  const std::string near = nearest_name(task, names);
  throw std::invalid_argument("no public data is known for '" + std::string(task) +
                              "'; there is: " + join_names(names) +
                              (near.empty() ? "" : "; did you mean '" + near + "'?"));
}

RemoteFile with_mirror(RemoteFile file, const std::string& mirror) {
  const bool names_file = mirror.ends_with("/" + file.name);
  const std::string slash = mirror.ends_with('/') ? "" : "/";
  file.addresses.insert(file.addresses.begin(), names_file ? mirror : mirror + slash + file.name);
  return file;
}

}  // namespace fmmformer::tasks::fetch

// The operator's timings on a GPU: measured, limit, floor, peers; and what was checked there.

const PEER_TITLES = { sdpa: "Softmax" };

// What is above its limit says so in words too, not by colour alone.
function limited(text, value, limit) {
  if (!known(limit) || !known(value)) return text;
  return element("span", { class: value > limit ? "over" : undefined }, text);
}

function limitText(timing) {
  if (!known(timing.limit)) return "–";
  return known(timing.graph) && timing.graph > timing.limit
    ? `${seconds(timing.limit)}, missed` : seconds(timing.limit);
}

function gpuPeers(timings) {
  return [...new Set(timings.flatMap((timing) => timing.peers
    .filter((peer) => known(peer.seconds)).map((peer) => peer.name)))];
}

function gpuTable(timings) {
  const peers = gpuPeers(timings);
  const titles = ["Case", "Graph", "Limit", "Eager", "Forward", "Floor", "× floor", "Memory",
    ...peers.map((name) => PEER_TITLES[name] ?? name)];
  return plainTable(titles, timings.map((timing) => {
    const cells = timing.failure ? [timing.failure, limitText(timing)] : [
      limited(seconds(timing.graph), timing.graph, timing.limit), limitText(timing), seconds(timing.eager),
      seconds(timing.forward), seconds(timing.floor), times(timing.graph / timing.floor),
      limited(bytes(timing.bytes), timing.bytes, timing.limit_bytes),
      ...peers.map((name) => seconds(timing.peers.find((peer) => peer.name === name)?.seconds))];
    const head = [element("span", {}, timing.name.replace(/^gpu_/, "")),
      element("span", { class: "shape" }, timing.shape)];
    return plainRow(titles, head, cells);
  }));
}

function barTable(bars) {
  const titles = ["Bar", "Measured", "Wanted", "Holds"];
  return plainTable(titles, bars.map((bar) => plainRow(titles, [element("span", { class: "statement" }, bar.what)],
    [element("span", { class: bar.met ? undefined : "over" }, bar.measured), bar.wanted, bar.met ? "yes" : "no"])));
}

function checkText(check) {
  const counts = [["passed", check.passed], ["failed", check.failed], ["skipped", check.skipped]]
    .filter(([what, number]) => known(number) && (number > 0 || what === "passed"))
    .map(([what, number]) => `${whole(number)} ${what}`);
  return `${check.name}: ${[...counts, check.note].filter(Boolean).join(", ")}`;
}

function drawGpuRecord(report, content, gpu) {
  const run = report.runs[gpu.run];
  const types = [...new Set(gpu.timings.map((timing) => timing.dtype))];
  const table = element("div", {});
  const show = (type) => table.replaceChildren(gpuTable(gpu.timings.filter((timing) => timing.dtype === type)));
  if (types.length) show(types[0]);
  content.append(
    ...(report.gpu.length > 1 ? [element("h3", { class: "task" }, run.name)] : []),
    ...(types.length > 1 ? [element("div", { class: "controls" },
      choice("Type", types.map((type) => [type, type]), types[0], show))] : []),
    table,
    ...(gpu.bars.length ? [barTable(gpu.bars)] : []),
    ...gpu.checks.map((check) => element("p", { class: "origin" }, `${capital(checkText(check))}.`)),
    origin([run], [known(gpu.copy_rate) ? `, copying at ${digits(gpu.copy_rate / 1e12)} TB/s` : "",
      gpu.kernel_hash ? `, kernel sources ${gpu.kernel_hash.slice(0, 12)}` : ""].join("")));
}

function drawGpu(report) {
  if (report.gpu.length === 0) return;
  const content = openSection("gpu");
  report.gpu.forEach((gpu) => drawGpuRecord(report, content, gpu));
}

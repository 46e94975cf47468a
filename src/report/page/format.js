// Numbers as people read them.

function known(value) {
  return value !== null && value !== undefined && Number.isFinite(value);
}

function digits(value, count = 3) {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e7)) return value.toExponential(count - 1);
  return value.toLocaleString("en", { maximumSignificantDigits: Math.max(count, size >= 1000 ? 5 : 0) });
}

function whole(value) {
  return known(value) ? Math.round(value).toLocaleString("en") : "–";
}

// In the largest unit that fits `like`, so that a deviation can take its mean's.
function withUnit(value, steps, like = value) {
  if (!known(value)) return "–";
  const [size, unit] = steps.find(([limit]) => Math.abs(like) >= limit) ?? steps.at(-1);
  return `${digits(value / size, like === value ? 3 : 2)} ${unit}`;
}

function seconds(value, like = value) {
  if (known(value) && value >= 120) {
    const minutes = Math.floor(value / 60);
    if (minutes >= 120) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
    return `${minutes} min ${Math.floor(value % 60)} s`;
  }
  return withUnit(value, [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]], like);
}

function bytes(value, like = value) {
  return withUnit(value, [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]], like);
}

function count(value, like = value) {
  return withUnit(value, [[1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]], like).trim();
}

function times(value) {
  return known(value) ? `${value >= 100 ? whole(value) : digits(value, 2)}×` : "–";
}

function metricText(metric, value, places = 2) {
  if (!known(value)) return "–";
  // Shares in the records, percentages for people.
  if (metric.is_share) return `${(100 * value).toFixed(places)}%`;
  return value.toLocaleString("en", { minimumSignificantDigits: 4, maximumSignificantDigits: 4 });
}

// "418 ± 2.9 k"; seeds that agree need no ±.
function spreadText(spread, text) {
  if (!spread) return "–";
  const mean = text(spread.mean, spread.mean);
  if (!known(spread.deviation) || !(spread.deviation > 1e-9 * Math.abs(spread.mean))) return mean;
  const deviation = text(spread.deviation, spread.mean);
  const unit = /[^0-9.,]*$/.exec(mean)[0];
  return unit && deviation.endsWith(unit)
    ? `${mean.slice(0, -unit.length)} ± ${deviation}` : `${mean} ± ${deviation}`;
}

function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function listed(parts) {
  return parts.length < 2 ? parts.join("") : `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}`;
}

function dateText(created) {
  const date = new Date(created);
  return Number.isNaN(date.getTime()) ? created
    : date.toLocaleDateString("en", { day: "numeric", month: "long", year: "numeric", timeZone: "UTC" });
}

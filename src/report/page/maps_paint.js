// Matrices to pixels.

// Little is close to the page's own colour, much stands out: yellow-green-blue on light, viridis on dark; both even
// in lightness and safe for colour-blind eyes. Weights below zero get a diverging scale.
const SEQUENTIAL = {
  light: [[255, 255, 217], [237, 248, 177], [199, 233, 180], [127, 205, 187], [65, 182, 196], [29, 145, 192],
    [34, 94, 168], [37, 52, 148], [8, 29, 88]],
  dark: [[68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141], [39, 173, 129], [92, 200, 99],
    [170, 220, 50], [253, 231, 37]],
};
const DIVERGING = [[33, 102, 172], [103, 169, 207], [209, 229, 240], [247, 247, 247], [253, 219, 199], [239, 138, 98],
  [178, 24, 43]];

function colourAt(anchors, share) {
  const place = Math.min(Math.max(share, 0), 1) * (anchors.length - 1);
  const index = Math.min(Math.floor(place), anchors.length - 2);
  return anchors[index].map((from, i) => from + (anchors[index + 1][i] - from) * (place - index));
}

// packed_matrix of page_data.h back to numbers.
function unpackMatrix(packed) {
  const text = atob(packed.base64);
  const step = (packed.high - packed.low) / 65535;
  const values = new Float32Array(packed.rows * packed.columns);
  const zero = step > 0 ? Math.round(-packed.low / step) : 0;
  for (let i = 0; i < values.length; i += 1) {
    const level = text.charCodeAt(2 * i) + 256 * text.charCodeAt(2 * i + 1);
    values[i] = level === zero ? 0 : packed.low + level * step;
  }
  return { rows: packed.rows, columns: packed.columns, low: packed.low, high: packed.high, values };
}

// What all but one in two hundred of the cells in use stay below: a first row, whose query sees one key and gives it
// everything, would otherwise pale all the others.
function usualHigh(matrices) {
  const values = new Float32Array(matrices.reduce((size, matrix) => size + matrix.values.length, 0));
  let used = 0;
  matrices.forEach((matrix) => matrix.values.forEach((value) => {
    if (value !== 0) values[used++] = Math.abs(value);
  }));
  return values.subarray(0, used).sort()[Math.floor(0.995 * (used - 1))] ?? 0;
}

// The scale that a set of matrices shares. Logarithmic shows the faint far field beside a strong diagonal.
function makeScale(matrices, kind) {
  const high = usualHigh(matrices);
  const clipped = matrices.some((matrix) => Math.max(matrix.high, -matrix.low) > high * 1.001);
  if (matrices.some((matrix) => matrix.low < 0)) {
    return { low: -high, high, clipped, anchors: DIVERGING, share: (value) => (value / (high || 1) + 1) / 2 };
  }
  const anchors = SEQUENTIAL[dark.matches ? "dark" : "light"];
  if (kind !== "log" || high === 0) {
    return { low: 0, high, clipped, anchors, share: (value) => value / (high || 1) };
  }
  const decades = 4;
  return { low: high / 10 ** decades, high, clipped, anchors, share: (value) => 1 + Math.log10(value / high) / decades };
}

function paintMatrix(canvas, matrix, scale) {
  canvas.width = matrix.columns;
  canvas.height = matrix.rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(matrix.columns, matrix.rows);
  matrix.values.forEach((value, i) => {
    if (value === 0) return;  // left transparent
    const [red, green, blue] = colourAt(scale.anchors, scale.share(value));
    image.data.set([red, green, blue, 255], 4 * i);
  });
  context.putImageData(image, 0, 0);
}

function paintScale(canvas, scale) {
  canvas.width = 128;
  canvas.height = 1;
  const context = canvas.getContext("2d");
  for (let i = 0; i < 128; i += 1) {
    context.fillStyle = `rgb(${colourAt(scale.anchors, i / 127).map(Math.round).join(",")})`;
    context.fillRect(i, 0, 1, 1);
  }
}

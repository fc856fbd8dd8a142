/* The data of the page: unpacked, with an object for each tensor. */

/** The data that Python put into the page. */
report.load = async () => {
  const text = document.getElementById("data").textContent.trim();
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
};

/** Makes a table of columns to a list of tensors: objects with a property for each column of
    `weft.report.tables`, and `row`, `readers` (rows) and `label` (the device's name, or nothing). */
report.tensors = (regime, devices) => {
  const columns = regime.tensors;
  const names = Object.keys(columns);
  const list = columns.name.map((_, row) => {
    const tensor = { row, readers: [] };
    for (const name of names) tensor[name] = columns[name][row];
    tensor.label = tensor.device < 0 ? "" : devices[tensor.device].name;
    return tensor;
  });
  for (const tensor of list) {
    for (const source of tensor.src) list[source].readers.push(tensor.row);
  }
  return list;
};

/** Unpacks the tables of all graphs; `regime.tensors` becomes the list, `regime.byName` a map. */
report.unpack = (data) => {
  for (const regime of data.regimes || []) {
    regime.tensors = report.tensors(regime, data.devices);
    regime.byName = new Map(regime.tensors.map((tensor) => [tensor.name, tensor]));
  }
  return data;
};

/** The graph that is shown. */
report.regime = (data, state) => data.regimes[Math.min(state.get("regime"), data.regimes.length - 1)];

/** The memory of the graph that is shown, at the sliders' position. */
report.layout = (state) => {
  const { regimes } = state.get("layout");
  return regimes[Math.min(state.get("regime"), regimes.length - 1)];
};

/** The selected tensor, or null. */
report.selected = (data, state) => {
  const name = state.get("tensor");
  return (name !== null && report.regime(data, state).byName.get(name)) || null;
};

/** The families of ops, in which tensors are coloured. */
report.families = [
  ["products", /^(MUL_MAT|OUT_PROD|CONV)/],
  ["attention", /^(FLASH_ATTN|SOFT_MAX|ROPE|ATTN|LIGHTNING)/],
  ["norms", /NORM/],
  ["element by element", /^(ADD|SUB|MUL|DIV|GLU|UNARY|SCALE|MAP|SQR|SQRT|CLAMP|SUM)/],
  ["moved rows, conversions", /^(GET_ROWS|SET_ROWS|CPY|DUP|CONT|CONCAT|REPEAT|QUANTIZE|PAD)/],
  ["inputs and copies", /^NONE$/],
  ["others", /./],
];

/** The number of an op's family. */
report.family = (op) => report.families.findIndex(([, names]) => names.test(op));

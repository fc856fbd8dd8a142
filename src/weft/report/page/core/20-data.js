/* The data of the page: unpacked, with an object for each tensor. */

/** The data that Python put into the page. */
report.load = async () => {
  const text = document.getElementById("data").textContent.trim();
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
};

/** Makes a table of columns to a list of tensors: objects with a property for each column, and
    `row`, `readers` (rows) and `label` (the device's name, or nothing). */
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
report.regime = (data, state) => data.regimes[state.get("regime")];

/** The selected tensor, or null. */
report.selected = (data, state) => {
  const name = state.get("tensor");
  return (name !== null && report.regime(data, state).byName.get(name)) || null;
};

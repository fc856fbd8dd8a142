/* The registry of views, elements without HTML, and the store that links the views. */

const report = (() => {
  const views = [];

  /** Adds a view; see the docstring of weft.report. */
  function view(description) {
    views.push(description);
  }

  /** An element with attributes and children; strings become text, functions listeners of `on...`.
      `class`, `text`, `aria-...` and properties such as `value` and `checked` are understood. */
  function el(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    fill(node, attributes);
    node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
    return node;
  }

  /** The same for SVG. */
  function svg(tag, attributes = {}, ...children) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    fill(node, attributes);
    node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
    return node;
  }

  function fill(node, attributes) {
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (name === "text") node.textContent = value;
      else if (name === "value" || name === "checked") node[name] = value;
      else if (name === "style") Object.assign(node.style, value); // a style attribute is not allowed
      else node.setAttribute(name, value === true ? "" : String(value));
    }
  }

  /** A store of values that views share. Listeners are called once for each change of their keys. */
  function store(initial) {
    const values = { ...initial };
    const listeners = [];
    return {
      get: (key) => values[key],
      set(changes) {
        const changed = Object.keys(changes).filter((key) => values[key] !== changes[key]);
        Object.assign(values, changes);
        for (const { keys, listener } of [...listeners]) {
          if (keys.some((key) => changed.includes(key))) listener(values, changed);
        }
      },
      /** Calls `listener` after changes of `keys` (a string or a list). */
      on(keys, listener) {
        listeners.push({ keys: [keys].flat(), listener });
      },
    };
  }

  const units = ["B", "KiB", "MiB", "GiB", "TiB"];

  /** A number of bytes in the unit that fits, as weft prints it. */
  function size(bytes) {
    let value = bytes;
    let unit = 0;
    while (Math.abs(value) >= 1024 && unit < units.length - 1) {
      value /= 1024;
      unit += 1;
    }
    return unit === 0 ? `${bytes} B` : `${value.toFixed(2)} ${units[unit]}`;
  }

  /** An integer with commas. */
  const count = (n) => Math.round(n).toLocaleString("en-US");

  /** The words of a number of things. */
  const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

  return { view, views, el, svg, store, size, count, plural };
})();

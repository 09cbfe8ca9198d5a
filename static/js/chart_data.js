// What a figure says, without its picture: where its cursor can stand, what lies there and where that leads; as a table and as CSV.
(() => {
  "use strict";

  // Names pass through Python's escaping, since plotly takes its texts for HTML.
  const words = (text) => String(text).replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");

  function href(trace, at, x, y) {
    const own = Array.isArray(at) ? trace.customdata?.[at[0]]?.[at[1]] : trace.customdata?.[at];
    const address = own ?? trace.meta?.href?.replace("{x}", encodeURIComponent(x)).replace("{y}", encodeURIComponent(y));
    // A figure leads to pages of this site only.
    return address && new URL(address, location.href).origin === location.origin ? address : null;
  }

  // {x, places: [label], xs: [x], columns: [name], cells: [place][column] -> {value, href, curve, point} or null}
  const GRIDS = {
    x({ data, table, x_names }) {
      const shown = data.map((trace, curve) => ({ trace, curve })).filter(({ trace }) => !trace.meta?.skip && !trace.meta?.of);
      const xs = [...new Set(shown.flatMap(({ trace }) => trace.x))];
      if (xs.every((x) => typeof x === "number")) xs.sort((a, b) => a - b);
      const row = new Map(xs.map((x, i) => [x, i]));
      const columns = [...new Set(shown.map(({ trace }) => trace.name))];
      const cells = xs.map(() => columns.map(() => null));
      for (const { trace, curve } of shown) {
        const column = columns.indexOf(trace.name);
        trace.x.forEach((x, point) => {
          const value = (trace.meta?.values ?? trace.y)[point];
          if (value !== null) cells[row.get(x)][column] = { value, href: href(trace, point, x, trace.y[point]), curve, point };
        });
      }
      for (const trace of data.filter(({ meta }) => meta?.of)) { // what is not finite is drawn as marks of its own
        const column = columns.indexOf(trace.meta.of);
        trace.x.forEach((x, point) => { cells[row.get(x)][column] = { value: trace.text[point], href: null } });
      }
      return { x: table.x, xs, places: xs.map((x, i) => words(x_names?.[i] ?? x)), columns: columns.map(words), cells };
    },
    matrix({ data: [trace], table }) {
      const cells = trace.x.map((x, i) => trace.y.map((y, j) =>
        trace.z[j][i] === null ? null : { value: trace.z[j][i], href: href(trace, [j, i], x, y), curve: 0, point: [j, i] }));
      return { x: table.x, xs: trace.x, places: trace.x.map(words), columns: trace.y.map((y) => `${table.y} ${words(y)}`), cells };
    },
    points({ data, table }) {
      const several = data.length > 1;
      // Dots may be drawn beside their place, so that none hides another; then they say where they belong.
      const rows = data.flatMap((trace, curve) => (trace.meta?.xs ?? trace.x).map((x, point) => ({ trace, curve, point, x, y: trace.y[point] })));
      return {
        x: "point",
        xs: rows.map(({ x }) => x),
        places: rows.map(({ trace, point }, i) => words(trace.text?.[point] ?? i + 1)),
        columns: [...(several ? ["series"] : []), table.x, table.y],
        cells: rows.map(({ trace, curve, point, x, y }) =>
          [...(several ? [words(trace.name)] : []), x, y].map((value) => value === null ? null : { value, href: href(trace, point, x, y), curve, point })),
      };
    },
  };
  const grid = (figure) => GRIDS[figure.table.kind](figure);

  // ---- a table, sorted by the column whose head is pressed
  const compared = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  function ordered({ xs, cells }, { column, down }) {
    const value = (at) => (column < 0 ? xs[at] : cells[at][column]?.value ?? null);
    const known = [...xs.keys()].filter((at) => value(at) !== null);
    const missing = [...xs.keys()].filter((at) => value(at) === null); // last, whatever the direction
    known.sort((a, b) => (down ? -1 : 1) * compared(value(a), value(b)));
    return [...known, ...missing];
  }
  function element(kind, text = "", attributes = {}) {
    const made = document.createElement(kind);
    made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }
  function head(name, index, sort) {
    const cell = element("th", "", { scope: "col" });
    const button = element("button", name, { type: "button", class: "link", "data-sort": index });
    if (sort?.column === index) cell.setAttribute("aria-sort", sort.down ? "descending" : "ascending");
    cell.append(button);
    return cell;
  }
  function value(kind, cell) {
    const box = element(kind, cell ? "" : "—", cell ? {} : { title: "no value" });
    if (cell?.href) box.append(element("a", cell.value, { href: cell.href }));
    else if (cell) box.textContent = cell.value;
    return box;
  }
  function table(figure, sort) {
    const found = grid(figure);
    const made = element("table", "", { class: "plain" });
    made.createTHead().insertRow().append(...[found.x, ...found.columns].map((name, i) => head(name, i - 1, sort)));
    const body = made.createTBody();
    for (const at of sort ? ordered(found, sort) : found.xs.keys()) {
      body.insertRow().append(element("th", found.places[at], { scope: "row" }), ...found.cells[at].map((cell) => value("td", cell)));
    }
    return made;
  }

  // ---- CSV; a text that a spreadsheet would take for a formula is kept a text
  function field(value) {
    if (typeof value === "number") return value;
    const text = /^[=+\-@\t\r]/.test(value) && !Number.isFinite(Number(value)) ? `'${value}` : value;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }
  function csv(figure) {
    const { x, places, columns, cells } = grid(figure);
    const rows = places.map((place, at) => [place, ...cells[at].map((cell) => cell?.value ?? "")]);
    return [[x, ...columns], ...rows].map((row) => row.map(field).join(",")).join("\n") + "\n";
  }

  window.chartData = { grid, table, csv, href };
})();

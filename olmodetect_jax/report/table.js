// Click a heading: sort by its column, largest first for numbers; click again: the other way. Missing values stay last.
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.querySelectorAll(".keys th")];
  const body = table.tBodies[0];
  const key = (row, column) => {
    const cell = row.cells[column];
    const text = cell.dataset.value ?? cell.textContent.trim();
    const number = text === "" ? NaN : Number(text);
    return Number.isNaN(number) ? text : number;
  };
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  headings.forEach((heading, column) => {
    heading.addEventListener("click", () => {
      const rows = [...body.rows].map((row) => [key(row, column), row]);
      const missing = ([value]) => value === "–";
      const numeric = rows.some(([value]) => typeof value === "number");
      const before = heading.getAttribute("aria-sort");
      const descending = before ? before === "ascending" : numeric;
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
      rows.sort((a, b) =>
        missing(a) || missing(b)
          ? Number(missing(a)) - Number(missing(b))
          : compare(a[0], b[0]) * (descending ? -1 : 1),
      );
      body.append(...rows.map(([, row]) => row));
    });
  });
}

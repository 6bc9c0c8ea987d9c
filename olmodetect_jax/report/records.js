// The records of a run: filter, sort, leaf through, open one. Texts only ever become text nodes.
const PAGE = 50;
const CLASSES = { 1: "member", 0: "non-member", null: "no label" };

function element(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "text") made.textContent = value;
    else if (name === "on") for (const [event, call] of Object.entries(value)) made.addEventListener(event, call);
    else if (value !== false && value !== null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

function labelled(words, control) {
  return element("label", {}, `${words} `, control);
}

function choice(words, options) {
  const select = element("select");
  for (const [value, text] of options) select.append(element("option", { value, text }));
  return [select, labelled(words, select)];
}

const shown = (value) => (value === null ? "–" : String(Number(value.toPrecision(4))));

for (const root of document.querySelectorAll(".records")) {
  const data = JSON.parse(root.querySelector("script").textContent);
  const records = data.records.map((values, index) => ({ index, values }));
  const headings = ["Record", "Subset", "Class", "Tokens", ...data.attacks];
  let order = { column: null, descending: true };
  let page = 0;
  let found = records;

  const [subset, subsetLabel] = choice("Subset", [["", "all"], ...data.subsets.map((title, i) => [i, title])]);
  const classes = [...new Set(data.records.map((r) => r[2]))];
  const [kind, kindLabel] = choice("Class", [["", "all"], ...classes.map((c) => [String(c), CLASSES[c]])]);
  const words = element("input", { type: "search", placeholder: "part of a record's id", size: 24 });
  const onlyTokens = element("input", { type: "checkbox" });
  const status = element("span", { class: "dim", role: "status" });
  const body = element("tbody");
  const previous = element("button", { type: "button", text: "← before" });
  const next = element("button", { type: "button", text: "next →" });
  const detail = element("section", { class: "record", "aria-label": "The opened record", tabindex: -1, hidden: true });
  let opener = null; // the button that opened it, which gets the focus back
  const headerCells = headings.map((title, column) =>
    element("th", { scope: "col" }, element("button", { type: "button", text: title, on: { click: () => sortBy(column) } })),
  );

  const text = (record, column) => {
    const value = record.values[column];
    if (column === 1) return data.subsets[value];
    if (column === 2) return CLASSES[value];
    return value;
  };

  function sortBy(column) {
    const numeric = column > 2;
    order = { column, descending: order.column === column ? !order.descending : numeric };
    headerCells.forEach((cell, i) => {
      if (i === column) cell.setAttribute("aria-sort", order.descending ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
    update();
  }

  function update() {
    const wanted = words.value.trim().toLowerCase();
    found = records.filter(
      ({ index, values }) =>
        (subset.value === "" || String(values[1]) === subset.value) &&
        (kind.value === "" || String(values[2]) === kind.value) &&
        (!onlyTokens.checked || index in data.tokens) &&
        (wanted === "" || values[0].toLowerCase().includes(wanted)),
    );
    if (order.column !== null) {
      const sign = order.descending ? -1 : 1;
      found.sort((a, b) => {
        const [x, y] = [text(a, order.column), text(b, order.column)];
        if (x === null || y === null) return Number(x === null) - Number(y === null); // missing stays last
        return sign * (typeof x === "number" ? x - y : String(x).localeCompare(String(y))) || a.index - b.index;
      });
    }
    page = 0;
    draw();
  }

  function draw() {
    const start = page * PAGE;
    body.replaceChildren(
      ...found.slice(start, start + PAGE).map((record) => {
        const open = element("button", { type: "button", class: "open", text: record.values[0], on: { click: (event) => show(record, event.currentTarget) } });
        const name = element("th", { scope: "row" }, open);
        if (record.index in data.tokens) name.append(" ", element("span", { class: "tag", text: "tokens" }));
        const cells = [text(record, 1), text(record, 2), ...record.values.slice(3).map(shown)];
        return element("tr", {}, name, ...cells.map((value) => element("td", { text: value })));
      }),
    );
    const end = Math.min(start + PAGE, found.length);
    status.textContent = found.length ? `${start + 1}–${end} of ${found.length} records` : "no such record";
    previous.disabled = page === 0;
    next.disabled = end >= found.length;
  }

  function hide() {
    detail.hidden = true;
    (opener?.isConnected ? opener : body.querySelector(".open"))?.focus();
  }

  function show(record, button) {
    opener = button;
    const [id, place, label, tokens, ...scores] = record.values;
    const others = data.records.filter((r) => r[1] === place && r[2] === 0);
    const rows = scores.map((score, i) => {
      const known = others.map((r) => r[4 + i]).filter((v) => v !== null);
      const share = score === null || !known.length ? null : known.filter((v) => v >= score).length / known.length;
      const bar = element("meter", { min: 0, max: 1, value: share ?? 0, "aria-hidden": true });
      return element(
        "tr", {},
        element("th", { scope: "row", text: data.attacks[i] }),
        element("td", { text: shown(score) }),
        element("td", {}, ...(share === null ? ["–"] : [`${(100 * share).toFixed(0)}%\u2002`, bar])),
      );
    });
    const close = element("button", { type: "button", text: "close", on: { click: hide } });
    detail.replaceChildren(
      element("h4", { text: id }), close,
      element("p", { class: "dim", text: `${data.subsets[place]}, ${CLASSES[label]}${tokens === null ? "" : `, ${tokens} tokens`}` }),
      element(
        "table", { class: "plain" },
        element("thead", {}, element("tr", { class: "keys" }, ...["Attack", "Score", "Non-members of the subset that score as high"].map((t) => element("th", { scope: "col", text: t })))),
        element("tbody", {}, ...rows),
      ),
      record.index in data.tokens ? tokenView(data.tokens[record.index]) : element("p", { class: "dim", text: data.noTokens ? `No view of the tokens: ${data.noTokens}.` : "The tokens of this record are not in the page; those of records marked “tokens” are." }),
    );
    detail.hidden = false;
    detail.focus();
    detail.scrollIntoView({ block: "nearest" });
  }

  function tokenView(view) {
    const says = element("p", { class: "dim", role: "status", text: "Point at a token, or use the arrow keys." });
    const marked = element("span", { class: "dim" });
    const measure = element("select", {}, element("option", { value: "logProb", text: "log-probability (MinK)" }), element("option", { value: "term", text: "standardised (MinK++)" }));
    const spans = view.pieces.map((piece, i) => {
      const span = element("span", { tabindex: i === 0 ? 0 : -1, text: piece });
      const tell = () => {
        const name = JSON.stringify(piece);
        says.textContent = i === 0 ? `${name}: the first token has no score` : `${name}: log-probability ${view.logProb[i - 1]}, standardised ${view.term[i - 1]}`;
      };
      span.addEventListener("focus", tell);
      span.addEventListener("mouseover", tell);
      return span;
    });
    const colour = () => {
      const values = view[measure.value];
      const standardised = measure.value === "term";
      const share = data.shares[Number(standardised)];
      marked.textContent = share === null ? " underlined: the lowest 20%" : ` underlined: the lowest ${Number((100 * share).toFixed(1))}%, whose mean is the score`;
      const low = new Set(view[standardised ? "lowTerm" : "lowLogProb"]);
      const scale = standardised ? 6 : 14;
      spans.forEach((span, i) => {
        if (i === 0) return;
        span.style.setProperty("--heat", `${Math.round(Math.min(1, Math.max(0, -values[i - 1] / scale)) * 80)}%`);
        span.classList.toggle("low", low.has(i - 1));
      });
    };
    measure.addEventListener("change", colour);
    colour();
    const box = element("div", { class: "tokens", "aria-label": "The text, token by token" }, ...spans);
    box.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const to = spans[spans.indexOf(document.activeElement) + step];
      if (!step || !to) return;
      event.preventDefault();
      to.focus();
    });
    return element(
      "div", {},
      element("p", {}, labelled("Colour: how unlikely a token was, by", measure), marked),
      box, says,
    );
  }

  for (const control of [subset, kind, onlyTokens]) control.addEventListener("change", update);
  words.addEventListener("input", update);
  detail.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  previous.addEventListener("click", () => { page -= 1; draw(); });
  next.addEventListener("click", () => { page += 1; draw(); });
  const controls = element("p", { class: "controls" }, subsetLabel, kindLabel, labelled("Find", words));
  if (Object.keys(data.tokens).length) controls.append(labelled("Only with tokens", onlyTokens));
  const table = element("table", { class: "plain listing" }, element("thead", {}, element("tr", { class: "keys" }, ...headerCells)), body);
  root.append(controls, element("div", { class: "scroll" }, table), element("p", { class: "pager" }, previous, " ", next, " ", status), detail);
  update();
}

// A logarithmic axis shows the left end of the ROC curves, where few non-members are accused.
for (const button of document.querySelectorAll("button.log-axis")) {
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(on));
    button.closest("section").classList.toggle("log", on);
  });
}

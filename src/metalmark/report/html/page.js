"use strict";
/* Nothing here is needed to read the page: it sorts and filters tables, and switches the colours. */
(function () {
  var root = document.documentElement;

  function kept(value) {
    /* A browser may refuse to keep anything for a file: then the choice lasts as long as the page. */
    try {
      if (value === undefined) return localStorage.getItem("metalmark-colours");
      localStorage.setItem("metalmark-colours", value);
    } catch (refused) {
      return null;
    }
    return value;
  }

  function colours(choice) {
    if (choice === "light" || choice === "dark") root.setAttribute("data-theme", choice);
    else root.removeAttribute("data-theme");
    var button = document.getElementById("colours");
    if (button) button.textContent = "Colours: " + (root.getAttribute("data-theme") || "system");
  }

  function key(row, column) {
    var cell = row.cells[column];
    if (!cell) return "";
    var said = cell.getAttribute("data-sort");
    return said === null ? cell.textContent.trim().toLowerCase() : said;
  }

  function order(a, b) {
    var x = Number(a), y = Number(b);
    if (!isNaN(x) && !isNaN(y)) return x - y;
    return a < b ? -1 : a > b ? 1 : 0;
  }

  function sort(table, heading) {
    var column = heading.cellIndex;
    var down = heading.getAttribute("aria-sort") === "ascending";
    Array.prototype.forEach.call(table.tHead.rows[0].cells, function (other) {
      other.removeAttribute("aria-sort");
    });
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    var body = table.tBodies[0];
    var rows = Array.prototype.map.call(body.rows, function (row, place) {
      return { row: row, key: key(row, column), place: place };
    });
    rows.sort(function (a, b) {
      /* What has no value comes last, whichever way the rest goes. */
      if ((a.key === "") !== (b.key === "")) return a.key === "" ? 1 : -1;
      return (down ? -1 : 1) * order(a.key, b.key) || a.place - b.place;
    });
    rows.forEach(function (entry) { body.appendChild(entry.row); });
  }

  function sortable(table) {
    Array.prototype.forEach.call(table.tHead.rows[0].cells, function (heading) {
      if (!heading.textContent.trim()) return;
      var button = document.createElement("button");
      button.type = "button";
      button.textContent = heading.textContent;
      button.addEventListener("click", function () { sort(table, heading); });
      heading.textContent = "";
      heading.appendChild(button);
    });
  }

  function reachable(part) {
    /* Only what is wider than its place is a stop for the keyboard, to scroll it by its arrows. */
    if (part.scrollWidth > part.clientWidth) {
      part.tabIndex = 0;
      part.setAttribute("role", "region");
      part.setAttribute("aria-label", part.getAttribute("data-label"));
    } else {
      part.removeAttribute("tabindex");
      part.removeAttribute("role");
      part.removeAttribute("aria-label");
    }
  }

  function filtered(tools) {
    var input = tools.querySelector("input");
    var count = tools.querySelector("output");
    var rows = tools.parentNode.querySelector("tbody").rows;
    function apply() {
      var words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      var shown = 0;
      Array.prototype.forEach.call(rows, function (row) {
        var text = row.textContent.toLowerCase();
        row.hidden = !words.every(function (word) { return text.indexOf(word) !== -1; });
        if (!row.hidden) shown += 1;
      });
      count.textContent = words.length ? shown + " of " + rows.length : "";
    }
    input.addEventListener("input", apply);
    input.addEventListener("keydown", function (event) {
      if (event.key === "Escape") { input.value = ""; apply(); }
    });
    tools.hidden = false;
  }

  function start() {
    var button = document.getElementById("colours");
    var next = { system: "dark", dark: "light", light: "system" };
    colours(kept());
    if (button) {
      button.hidden = false;
      button.addEventListener("click", function () {
        var choice = next[root.getAttribute("data-theme") || "system"];
        kept(choice);
        colours(choice);
      });
    }
    document.querySelectorAll("table.sortable").forEach(sortable);
    document.querySelectorAll(".tools.filter").forEach(filtered);
    function measure() { document.querySelectorAll(".scroll").forEach(reachable); }
    window.addEventListener("resize", measure);
    document.addEventListener("toggle", measure, true);
    measure();
    /* A link to something inside of a closed part opens it. */
    function open() {
      var place = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
      for (var at = place; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
      if (place) place.scrollIntoView();
    }
    window.addEventListener("hashchange", open);
    open();
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();

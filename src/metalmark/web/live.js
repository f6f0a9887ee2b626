"use strict";
/* Fetches the part that changes, drawn by the server, once a second; nothing while nobody looks. */
(function () {
  var EVERY_MS = 1000;
  var here = document.getElementById("live");
  var tools = document.getElementById("live-tools");
  var said = document.getElementById("live-said");
  if (!here || !tools || !said) return;
  var paused = false, over = false, misses = 0;

  var button = document.createElement("button");
  button.type = "button";
  button.className = "quiet";
  button.textContent = "Pause";
  button.addEventListener("click", function () {
    paused = !paused;
    button.textContent = paused ? "Go on" : "Pause";
    if (!paused) look();
  });
  tools.insertBefore(button, said);
  tools.querySelector("a").hidden = true;

  function stops() { return Array.prototype.slice.call(here.querySelectorAll("a, .scroll")); }

  function show(text) {
    var found = new DOMParser().parseFromString(text, "text/html").body;
    /* Who reads by keyboard, or has moved a wide table aside, stays where they are. */
    var at = stops().indexOf(document.activeElement);
    var aside = stops().map(function (stop) { return stop.scrollLeft; });
    here.replaceChildren.apply(here, Array.prototype.slice.call(found.childNodes));
    window.dispatchEvent(new Event("resize"));  /* page.js makes stops for the keyboard of tables that are too wide */
    stops().forEach(function (stop, place) {
      if (aside[place]) stop.scrollLeft = aside[place];
      if (place === at) stop.focus({ preventScroll: true });
    });
    over = Boolean(here.querySelector("[data-over]"));
    if (over) button.hidden = true;
  }

  function look() {
    if (paused || over) return;
    if (document.hidden) { later(); return; }
    fetch(here.getAttribute("data-now"), { headers: { Accept: "text/html" } }).then(function (answer) {
      if (!answer.ok) throw new Error(String(answer.status));
      return answer.text();
    }).then(function (text) {
      misses = 0;
      if (said.textContent) said.textContent = "";
      if (!paused) show(text);
    }).catch(function () {
      misses += 1;
      said.textContent = "The server does not answer; trying again.";
    }).then(later);
  }

  function later() {
    if (!paused && !over) setTimeout(look, EVERY_MS * Math.min(misses + 1, 10));
  }

  over = Boolean(here.querySelector("[data-over]"));
  if (over) button.hidden = true;
  later();
})();

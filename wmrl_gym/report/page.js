"use strict";
(function () {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  function draw() {
    const style = getComputedStyle(document.documentElement);
    const text = style.getPropertyValue("--text").trim(), line = style.getPropertyValue("--line").trim();
    for (const [id, chart] of Object.entries(charts)) {
      const given = chart.layout, axis = { gridcolor: line, zerolinecolor: line, automargin: true };
      const layout = Object.assign({ margin: { l: 10, r: 25, t: 15, b: 50 }, modebar: { bgcolor: "rgba(0,0,0,0)", color: line } }, given, {
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: text, family: "system-ui, sans-serif" },
        xaxis: Object.assign({}, axis, given.xaxis), yaxis: Object.assign({}, axis, given.yaxis),
      });
      Plotly.react(document.getElementById(id), chart.data, layout, { displaylogo: false, responsive: true });
    }
  }
  draw();
  dark.addEventListener("change", draw);
  const filters = Array.from(document.querySelectorAll(".filters select"));
  function filter() {
    for (const each of document.querySelectorAll("details.trajectory")) {
      each.hidden = filters.some((select) => select.value !== "" && each.dataset[select.name] !== select.value);
    }
  }
  filters.forEach((select) => select.addEventListener("change", filter));
})();

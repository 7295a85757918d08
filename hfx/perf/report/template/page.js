"use strict";
(() => {
  const specs = JSON.parse(document.getElementById("specs").textContent);
  // No expression is compiled (ast): the page's policy forbids eval. No loader: the specifications hold their data.
  const nothing = () => Promise.reject(new Error("this page loads nothing"));
  const options = {
    mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false, config: specs.config,
    tooltip: { theme: "page", disableDefaultStyle: true }, loader: { load: nothing, sanitize: nothing },
  };
  const drawn = [...document.querySelectorAll(".plot")].map((plot) =>
    vegaEmbed(plot, specs.charts[plot.dataset.chart], options).then(
      () => { plot.style.minHeight = ""; },
      (error) => { plot.textContent = `This chart can't be drawn (${error.message}).`; throw error; },
    ));
  Promise.all(drawn).then(() => { document.documentElement.dataset.drawn = drawn.length; });
})();

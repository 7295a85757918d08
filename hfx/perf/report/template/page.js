"use strict";
(() => {
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");

  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const name = () => { button.textContent = dark() ? "Light colours" : "Dark colours"; };
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); });
  system.addEventListener("change", name);
  name();
  button.hidden = false;

  for (const save of document.querySelectorAll(".save")) {
    save.hidden = false;
    save.addEventListener("click", () => {
      const text = document.getElementById(save.dataset.result).textContent;
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
      link.download = save.dataset.name;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    });
  }

  // No expression is compiled (ast): the page's policy forbids eval. No loader: the specifications hold their data.
  const options = {
    mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false, config: specs.config,
    tooltip: { theme: "page", disableDefaultStyle: true },
    loader: { load: () => Promise.reject(new Error("this page loads nothing")), sanitize: () => Promise.reject(new Error("no links")) },
  };
  const drawn = [...document.querySelectorAll(".plot")].map((plot) =>
    vegaEmbed(plot, specs.charts[plot.dataset.chart], options).then(
      () => { plot.style.minHeight = ""; },
      (error) => { plot.textContent = `This plot can't be drawn (${error.message}); its values are below.`; throw error; },
    ));
  Promise.all(drawn).then(() => { root.dataset.drawn = drawn.length; });

  const shut = () => [...document.querySelectorAll("details:not([open])")];
  let opened = [];
  addEventListener("beforeprint", () => { opened = shut(); for (const each of opened) each.open = true; });
  addEventListener("afterprint", () => { for (const each of opened) each.open = false; });
})();

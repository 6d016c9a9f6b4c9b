import { readBlock } from "./block.js";
import { byId } from "./dom.js";
import { showFloor } from "./floor.js";
import { showRun } from "./run.js";

const shows = { run: showRun, "floor plan": showFloor };

readBlock(byId("block").textContent).then((header) => {
  document.title = byId("title").textContent = header.title;
  shows[header.kind](header);
  document.body.dataset.ready = performance.now().toFixed(0); // milliseconds
}).catch((error) => {
  byId("facts").textContent = `This page cannot be shown: ${error.message}`;
});

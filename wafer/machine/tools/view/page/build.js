// Build ../view.html from the sources here: npm install && npm run build.
import { buildSync } from "esbuild";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";

const { outputFiles, metafile } = buildSync({
  entryPoints: ["main.js"], bundle: true, minify: true, write: false, metafile: true, legalComments: "none", target: "es2022",
});
const script = outputFiles[0].text.trim().replaceAll("</script", "<\\/script");
const packages = new Set(Object.keys(metafile.inputs).flatMap((file) => /node_modules\/[^/]+/.exec(file) ?? []));
const licence = (folder) => readFileSync(`${folder}/${readdirSync(folder).find((name) => name.startsWith("LICENSE"))}`, "utf8").trim();
const notice = `/* Contains modules of D3, d3js.org:\n${[...new Set([...packages].map(licence))].join("\n\n")}\n*/\n`;
const page = readFileSync("page.html", "utf8").replace("@SCRIPT@", () => notice + script);
writeFileSync("../view.html", page);
console.log(`view.html: ${page.length} bytes of ${[...packages].map((folder) => folder.slice(13)).join(", ")}`);

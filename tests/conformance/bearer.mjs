// Preloaded into the conformance suite, which has no option for a header: every request carries our token.
// The suite asks in three ways: fetch and undici's request (both over undici's dispatcher), and node:http.
import http from 'node:http';
import { createRequire } from 'node:module';

const { Agent, setGlobalDispatcher } = createRequire(process.argv[1])('undici');
const authorization = `Bearer ${process.env.CONFORMANCE_TOKEN}`;

const withToken = (dispatch) => (options, handler) => {
  const given = options.headers;
  const headers = Array.isArray(given) ? [...given, 'authorization', authorization] : { ...given, authorization };
  return dispatch({ ...options, headers }, handler);
};
setGlobalDispatcher(new Agent().compose(withToken));

const request = http.request;
http.request = (...words) => {
  const made = request(...words);
  made.setHeader('authorization', authorization);
  return made;
};

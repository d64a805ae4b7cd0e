// oauth2-mock-server as an issuer of any token: Kubernetes, GitHub Actions and SPIFFE shapes. Arguments: port. A line
// {"header": {...}, "claims": {...}} on standard input is answered with a line: the token, signed by the published key.
import { createInterface } from 'node:readline';
import { OAuth2Server } from 'oauth2-mock-server';

const server = new OAuth2Server();
await server.issuer.keys.generate('RS256');
await server.start(Number(process.argv[2]), '127.0.0.1');
console.log('ready');
for await (const line of createInterface({ input: process.stdin })) {
  const { header, claims } = JSON.parse(line);
  const replace = (into, given) => {
    for (const [name, value] of Object.entries(given ?? {})) {
      if (value === null) delete into[name];
      else into[name] = value;
    }
  };
  const token = await server.issuer.buildToken({
    scopesOrTransform: (head, payload) => { replace(head, header); replace(payload, claims); },
  });
  console.log(token);
}
await server.stop();

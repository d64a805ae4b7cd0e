// panva's oidc-provider, an OpenID-certified server, with its development log-in form. One JSON argument:
// {"port": n, "clients": [...], "people": {"login": {claims}}, "jwks": its private keys,
// "listed": [what its key set lists before them]}. Prints "ready" when it listens.
import { Provider } from 'oidc-provider';

const { port, clients, people, jwks, listed } = JSON.parse(process.argv[2]);
const issuer = `http://127.0.0.1:${port}`;
const provider = new Provider(issuer, {
  clients,
  ...(jwks && { jwks }),
  claims: { openid: ['sub'], profile: ['name', 'preferred_username'], email: ['email'], groups: ['groups', 'realm_access', '_claim_names', '_claim_sources'] },
  scopes: ['openid', 'offline_access'],
  conformIdTokenClaims: true, // as the standard has it: the ID token names the subject, userinfo the rest
  features: {
    devInteractions: { enabled: true },
    clientCredentials: { enabled: true },
    jwtUserinfo: { enabled: true }, // for clients that have `userinfo_signed_response_alg`
    backchannelLogout: { enabled: true },
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: (ctx, resource) => ({
        scope: 'agent', audience: resource, accessTokenTTL: 600, accessTokenFormat: 'jwt', jwt: { sign: { alg: 'RS256' } },
      }),
    },
  },
  // it refuses to call loopback addresses, where everything of a test is
  fetch: (url, { dispatcher, ...options }) => fetch(url, options),
  pkce: { required: () => true },
  findAccount: async (ctx, login) => (people[login] ? { accountId: login, claims: async () => ({ sub: login, ...people[login] }) } : undefined),
});
provider.use(async (ctx, next) => {
  await next();
  if (ctx.path === '/jwks' && listed) ctx.body = { keys: [...listed, ...ctx.body.keys] };
});
provider.listen(port, '127.0.0.1', () => console.log('ready'));

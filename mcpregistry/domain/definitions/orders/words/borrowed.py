"""What speakers of every language write in English, or as an address."""

BORROWED = {
    "://": "://",
    "secret": "password, passwords, api key, api keys, apikey, access token, access tokens, ssh key, ssh keys, private key, secret key,"
    " cookies, env file, github token, id_rsa",
    "talk": "system prompt",
}

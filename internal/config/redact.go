package config

import (
	"strings"
)

// RedactDSN shows where a data source is without its secrets: passwords and
// everything that could be one become "***". When a form is not known for sure
// the whole is hidden, since a message that says too little harms nobody.
func RedactDSN(dsn string) string {
	switch {
	case dsn == "":
		return ""
	case strings.Contains(dsn, "://"):
		return redactURL(dsn)
	case strings.Contains(dsn, "@"):
		return redactMySQL(dsn)
	case strings.Contains(dsn, "="):
		return redactPairs(dsn)
	case strings.ContainsAny(dsn, ":?&;") && !windowsPath(dsn):
		return "***"
	}
	return dsn // a path
}

func windowsPath(s string) bool {
	return len(s) > 2 && s[1] == ':' && (s[2] == '\\' || s[2] == '/') && !strings.ContainsAny(s[2:], ":?&;")
}

// redactURL keeps scheme, host and path. Everything before the last "@" is
// user information, even with a raw "/" or "@" in the password.
func redactURL(dsn string) string {
	scheme, rest, _ := strings.Cut(dsn, "://")
	if !plainWord(scheme) {
		return "***"
	}
	cut := ""
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		// With options before it, the "@" may belong to a password there.
		if strings.ContainsAny(rest[:i], "?#;") {
			return scheme + "://***"
		}
		rest, cut = rest[i+1:], "***@"
	}
	if i := strings.IndexAny(rest, "?#;"); i >= 0 {
		rest = rest[:i+1] + "***"
	}
	return scheme + "://" + cut + rest
}

// redactMySQL keeps what follows the last "@", without parameters:
// user:password@tcp(host)/name?options.
func redactMySQL(dsn string) string {
	at := strings.LastIndexByte(dsn, '@')
	if strings.ContainsAny(dsn[:at], "?;") {
		return "***"
	}
	rest := dsn[at+1:]
	if i := strings.IndexAny(rest, "?;"); i >= 0 {
		rest = rest[:i+1] + "***"
	}
	if strings.ContainsAny(rest, "= ") {
		return "***"
	}
	return "***@" + rest
}

// Keys of key=value forms whose values may be shown.
var plainKeys = map[string]bool{"host": true, "hostaddr": true, "port": true, "dbname": true, "database": true, "sslmode": true, "server": true}

// redactPairs reads "host=a port=5432 password=b" and "server=a;password=b".
// A quote or a backslash makes the borders of values uncertain: all is hidden.
func redactPairs(dsn string) string {
	if strings.ContainsAny(dsn, `'"\`) {
		return "***"
	}
	sep := " "
	if strings.Contains(dsn, ";") {
		sep = ";"
	}
	var out []string
	for _, pair := range strings.Split(dsn, sep) {
		k, v, ok := strings.Cut(pair, "=")
		// What follows a secret may still belong to it: a separator is a legal
		// character of a password. So the rest stays hidden.
		if !ok || !plainKeys[strings.ToLower(strings.TrimSpace(k))] || strings.ContainsAny(v, "= ;") {
			return strings.Join(append(out, "***"), sep)
		}
		out = append(out, pair)
	}
	return strings.Join(out, sep)
}

func plainWord(s string) bool {
	if s == "" || len(s) > 40 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if c != '_' && c != '-' && c != '+' && c != ' ' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

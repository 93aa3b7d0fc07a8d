package config

import (
	"errors"
	"fmt"
	"strings"
)

// expand replaces ${NAME} and ${NAME:-default} by the environment's values.
// With :- an empty variable takes the default too, as in a shell. "$${" is a
// literal "${"; a "$" before anything else stands for itself. What a variable
// holds is not expanded again.
func expand(s string, lookup func(string) (string, bool)) (string, error) {
	if !strings.Contains(s, "${") {
		return s, nil
	}
	var b strings.Builder
	for {
		i := strings.Index(s, "${")
		if i < 0 {
			b.WriteString(s)
			return b.String(), nil
		}
		if i > 0 && s[i-1] == '$' {
			b.WriteString(s[:i-1] + "${")
			s = s[i+2:]
			continue
		}
		b.WriteString(s[:i])
		s = s[i+2:]
		end := strings.IndexByte(s, '}')
		if end < 0 {
			return "", errors.New(`"${" is not closed by "}" (write "$${" for a literal "${")`)
		}
		name, def, hasDef := strings.Cut(s[:end], ":-")
		s = s[end+1:]
		if !envName(name) {
			return "", fmt.Errorf(`"${%s}": the name of an environment variable is letters, digits and "_" (write "$${" for a literal "${")`, name)
		}
		v, ok := lookup(name)
		switch {
		case hasDef && v == "":
			v = def
		case !ok:
			return "", fmt.Errorf(`the environment variable %s is not set (set it, or give a default: "${%s:-…}")`, name, name)
		}
		b.WriteString(v)
	}
}

func envName(s string) bool {
	if s == "" || s[0] >= '0' && s[0] <= '9' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return true
}

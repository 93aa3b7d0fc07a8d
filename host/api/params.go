package api

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// params are the query parameters of one call. Every one that is not asked for
// is an error, so that a typing mistake does not widen a query.
type params struct {
	values url.Values
	err    error
	known  []string
	prefix string // parameters that start so are taken too
}

func paramsOf(r *http.Request) *params {
	v, err := url.ParseQuery(r.URL.RawQuery)
	p := &params{values: v}
	if err != nil {
		p.err = badRequest("the query of the address is malformed: %v", err)
	}
	return p
}

func (p *params) fail(format string, args ...any) {
	if p.err == nil {
		p.err = badRequest(format, args...)
	}
}

func (p *params) str(name string) (string, bool) {
	p.known = append(p.known, name)
	v, ok := p.values[name]
	if !ok {
		return "", false
	}
	if len(v) > 1 {
		p.fail("parameter %q is given more than once", name)
	}
	return v[0], true
}

func (p *params) int(name string, def, least, most int64) int64 {
	s, ok := p.str(name)
	if !ok {
		return def
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < least || n > most {
		if most == maxInt64 {
			p.fail("parameter %q must be a whole number of at least %d, it is %q", name, least, s)
		} else {
			p.fail("parameter %q must be a whole number from %d to %d, it is %q", name, least, most, s)
		}
		return def
	}
	return n
}

const maxInt64 = 1<<63 - 1

func (p *params) duration(name string, def, most time.Duration) time.Duration {
	s, ok := p.str(name)
	if !ok {
		return def
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d > most {
		p.fail(`parameter %q must be a duration of at most %s, such as "2s" or "500ms", it is %q`, name, most, s)
		return def
	}
	return d
}

// prefixed gives the parameters that start with prefix, without it, sorted.
func (p *params) prefixed(prefix string) (names []string) {
	p.prefix = prefix
	for name := range p.values {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			names = append(names, rest)
		}
	}
	slices.Sort(names)
	return names
}

// done gives the first error, unknown parameters included.
func (p *params) done() error {
	if p.err != nil {
		return p.err
	}
	var unknown []string
	for name := range p.values {
		if !slices.Contains(p.known, name) && (p.prefix == "" || !strings.HasPrefix(name, p.prefix)) {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		known := strings.Join(p.known, ", ")
		if p.prefix != "" {
			known += ", " + p.prefix + "FIELD"
		}
		if known == "" {
			known = "none"
		}
		return badRequest("unknown parameter %q; the parameters are %s", unknown[0], known)
	}
	return nil
}

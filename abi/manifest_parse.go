package abi

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Limits of a manifest. They bound what a hostile module can cost at admission.
const (
	MaxManifest = 1 << 20 // bytes

	maxConsumers    = 64
	maxInputs       = 64 // of a consumer
	maxTables       = 64 // of a consumer
	maxTypes        = 4096
	maxPointers     = 64
	maxAssociations = 64
	maxAliases      = 64
	maxCapabilities = 256
	maxProblems     = 1000
	maxEntries      = 1 << 16 // members and elements in all
)

// ManifestError lists everything that is wrong with a manifest, each problem
// with the path of its place: "consumers[0].tables[1].name: …". It wraps
// [ErrMalformed].
type ManifestError struct {
	Problems []string
}

func (e *ManifestError) Error() string {
	if len(e.Problems) == 1 {
		return "manifest: " + e.Problems[0]
	}
	return "manifest: " + strconv.Itoa(len(e.Problems)) + " problems:\n  " + strings.Join(e.Problems, "\n  ")
}

// Unwrap makes errors.Is(err, ErrMalformed) true.
func (e *ManifestError) Unwrap() error { return ErrMalformed }

// ParseManifest reads and checks a manifest. It reports every problem at once,
// as a [*ManifestError]; only what is not JSON at all, or over [MaxManifest]
// bytes, is refused without a further look. Members it does not know are
// problems. The result shares no memory with b. Its distributions are filled in.
func ParseManifest(b []byte) (*Manifest, error) {
	if len(b) > MaxManifest {
		return nil, &ManifestError{Problems: []string{"it has " + strconv.Itoa(len(b)) + " bytes; at most " +
			strconv.Itoa(MaxManifest) + " are allowed"}}
	}
	if !utf8.Valid(b) {
		return nil, &ManifestError{Problems: []string{"it is not UTF-8"}}
	}
	syntax := scanner{b: b}
	if !syntax.document() {
		return nil, &ManifestError{Problems: []string{"it is not JSON: stopped at byte " + strconv.Itoa(syntax.off)}}
	}
	p := manifestParser{s: scanner{b: b}}
	m := p.manifest()
	if p.entries > maxEntries {
		return nil, &ManifestError{Problems: []string{"it has more than " + strconv.Itoa(maxEntries) +
			" members and elements in all"}}
	}
	m.check(&p.problems)
	if len(p.problems.list) > 0 {
		return nil, &ManifestError{Problems: p.problems.list}
	}
	return m, nil
}

// Validate checks a manifest built in memory as [ParseManifest] would, and fills
// in its distributions.
func (m *Manifest) Validate() error {
	var ps problems
	m.check(&ps)
	if len(ps.list) > 0 {
		return &ManifestError{Problems: ps.list}
	}
	return nil
}

// problems collects what is wrong.
type problems struct {
	list []string
	// unread are the paths of values that could not be read: what is found
	// missing there, or below, later is no news.
	unread map[string]bool
	capped bool
}

func (ps *problems) add(path, text string) {
	if ps.unread[""] {
		return
	}
	for i := range len(path) + 1 {
		if (i == len(path) || path[i] == '.' || path[i] == '[') && ps.unread[path[:i]] {
			return
		}
	}
	if ps.capped {
		return
	}
	if len(ps.list) == maxProblems {
		ps.capped = true
		ps.list = append(ps.list, "there are more problems than these "+strconv.Itoa(maxProblems))
		return
	}
	if path != "" {
		text = path + ": " + text
	}
	ps.list = append(ps.list, text)
}

// unreadable adds a problem and keeps the path from being complained about
// again.
func (ps *problems) unreadable(path, text string) {
	ps.add(path, text)
	if ps.unread == nil {
		ps.unread = map[string]bool{}
	}
	ps.unread[path] = true
}

// manifestParser reads JSON that is known to be well-formed into a manifest.
// Its methods read the value that comes next, whatever it is; of a value of the
// wrong type they make a problem.
type manifestParser struct {
	s        scanner
	path     []byte
	problems problems
	entries  int // members and elements seen
}

func (p *manifestParser) manifest() *Manifest {
	m := &Manifest{}
	p.object(func(name string) bool {
		switch name {
		case "abi":
			p.integer(&m.ABI, 0, 1<<30)
		case "name":
			p.string(&m.Name)
		case "version":
			p.string(&m.Version)
		case "consumers":
			p.array(maxConsumers, func() { m.Consumers = append(m.Consumers, p.consumer()) })
		case "capabilities":
			p.strings(&m.Capabilities, maxCapabilities)
		case "heap":
			p.string(&m.Heap)
		default:
			return false
		}
		return true
	})
	return m
}

func (p *manifestParser) consumer() (c Consumer) {
	p.object(func(name string) bool {
		switch name {
		case "type":
			p.string(&c.Type)
		case "name":
			p.string(&c.Name)
		case "aliases":
			p.strings(&c.Aliases, maxAliases)
		case "inputs":
			p.array(maxInputs, func() { c.Inputs = append(c.Inputs, p.input()) })
		case "tables":
			p.array(maxTables, func() { c.Tables = append(c.Tables, p.table()) })
		case "distribution":
			p.string(&c.Distribution)
		case "ignore_on_replay":
			p.boolean(&c.IgnoreOnReplay)
		case "state_version":
			p.integer(&c.StateVersion, 0, 1<<30)
		default:
			return false
		}
		return true
	})
	return c
}

func (p *manifestParser) input() (in Input) {
	p.object(func(name string) bool {
		switch name {
		case "topic":
			p.string(&in.Topic)
		case "aggregate_types":
			p.strings(&in.AggregateTypes, maxTypes)
		case "types":
			p.strings(&in.Types, maxTypes)
		case "key":
			p.keyRule(&in.Key)
		case "keys_version":
			p.integer(&in.KeysVersion, 1, 1<<30)
		case "associations":
			in.Associations = map[string]string{}
			p.object(func(name string) bool {
				var pointer string
				p.string(&pointer)
				if in.Associations[name] = pointer; len(in.Associations) > maxAssociations {
					p.tooMany(maxAssociations)
				}
				return true
			})
		default:
			return false
		}
		return true
	})
	return in
}

func (p *manifestParser) table() (t Table) {
	p.object(func(name string) bool {
		switch name {
		case "name":
			p.string(&t.Name)
		case "parent":
			p.string(&t.Parent)
		case "child":
			t.Child = &KeyRule{}
			p.keyRule(t.Child)
		case "free":
			p.boolean(&t.Free)
		case "columns":
			p.array(MaxColumns, func() { t.Columns = append(t.Columns, p.column()) })
		default:
			return false
		}
		return true
	})
	return t
}

func (p *manifestParser) column() (c Column) {
	p.object(func(name string) bool {
		switch name {
		case "name":
			p.string(&c.Name)
		case "kind":
			p.string(&c.Kind)
		case "max":
			p.integer(&c.Max, 1, maxTextMax)
		case "precision":
			p.integer(&c.Precision, 1, maxPrecision)
		case "scale":
			p.integer(&c.Scale, 0, maxPrecision)
		case "index":
			p.boolean(&c.Index)
		case "unique":
			p.boolean(&c.Unique)
		case "null":
			c.Null = new(bool)
			p.boolean(c.Null)
		case "default":
			c.Default = append(RawJSON{}, p.raw()...)
		case "from":
			p.string(&c.From)
			if c.From == "" {
				p.problems.unreadable(string(p.path), "names the whole document; a pointer into it begins with a slash")
			}
		case "of":
			p.string(&c.Of)
		default:
			return false
		}
		return true
	})
	return c
}

func (p *manifestParser) keyRule(k *KeyRule) {
	switch p.s.peek() {
	case '"':
		var word string
		p.string(&word)
		switch word {
		case "aggregate_id":
			k.Kind = KeyAggregateID
		case "function":
			k.Kind = KeyFunction
		default:
			p.problems.unreadable(string(p.path), quote(word)+" is no rule; there are \"aggregate_id\", \"function\", "+
				"{\"pointer\": …} and {\"pointers\": […]}")
		}
	case '{':
		k.Kind = KeyPointers
		members := 0
		p.object(func(name string) bool {
			switch name {
			case "pointer":
				var pointer string
				p.string(&pointer)
				k.Pointers = append(k.Pointers, pointer)
			case "pointers":
				p.strings(&k.Pointers, maxPointers)
			default:
				return false
			}
			members++
			return true
		})
		if members != 1 {
			p.problems.unreadable(string(p.path), "takes either \"pointer\" or \"pointers\"")
		}
	default:
		p.mismatch("a string or an object")
	}
}

// object reads an object. Member is called for each of its members and must
// read its value, or return false if it does not know the name.
func (p *manifestParser) object(member func(name string) bool) {
	if p.s.peek() != '{' {
		p.mismatch("an object")
		return
	}
	seen := map[string]bool{}
	depth := len(p.path)
	for first := true; ; first = false {
		more, ok := p.s.member(first)
		if !more || !ok || !p.spend() {
			return
		}
		raw, _, _ := p.s.name()
		name := string(unquote(nil, raw))
		p.path = appendMember(p.path, name)
		switch {
		case seen[name]:
			p.problems.add(string(p.path), "is there twice")
			p.s.skip()
		case !member(name):
			p.problems.add(string(p.path), "is not a member that ABI 1 knows")
			p.s.skip()
		}
		seen[name] = true
		p.path = p.path[:depth]
	}
}

// array reads an array; element must read one element. Elements beyond limit
// are one problem and are not looked at.
func (p *manifestParser) array(limit int, element func()) {
	if p.s.peek() != '[' {
		p.mismatch("an array")
		return
	}
	depth := len(p.path)
	for i := 0; ; i++ {
		more, ok := p.s.element(i == 0)
		if !more || !ok || !p.spend() {
			return
		}
		if i >= limit {
			if i == limit {
				p.tooMany(limit)
			}
			p.s.skip()
			continue
		}
		p.path = append(strconv.AppendInt(append(p.path, '['), int64(i), 10), ']')
		element()
		p.path = p.path[:depth]
	}
}

// spend counts an entry. Once there are too many it moves to the end of the
// input, where every loop stops.
func (p *manifestParser) spend() bool {
	if p.entries++; p.entries <= maxEntries {
		return true
	}
	p.s.off = len(p.s.b)
	return false
}

func (p *manifestParser) tooMany(limit int) {
	p.problems.unreadable(string(p.path), "has more than "+strconv.Itoa(limit)+" entries")
}

func (p *manifestParser) strings(dst *[]string, limit int) {
	*dst = []string{}
	p.array(limit, func() {
		var s string
		p.string(&s)
		*dst = append(*dst, s)
	})
}

func (p *manifestParser) string(dst *string) {
	if p.s.peek() != '"' {
		p.mismatch("a string")
		return
	}
	raw, _, _ := p.s.str()
	s := unquote(nil, raw)
	if !ValidText(s) {
		p.problems.unreadable(string(p.path), "holds U+0000 or half a surrogate pair")
		return
	}
	*dst = string(s)
}

func (p *manifestParser) boolean(dst *bool) {
	switch p.s.peek() {
	case 't':
		*dst = true
	case 'f':
		*dst = false
	default:
		p.mismatch("true or false")
		return
	}
	p.s.skip()
}

func (p *manifestParser) integer(dst *int, low, high int) {
	if c := p.s.peek(); c != '-' && (c < '0' || c > '9') {
		p.mismatch("a number")
		return
	}
	raw, _ := p.s.number()
	n, err := strconv.Atoi(string(raw))
	if err != nil || n < low || n > high {
		p.problems.unreadable(string(p.path), "must be a whole number from "+strconv.Itoa(low)+" to "+
			strconv.Itoa(high)+", not "+clip(string(raw)))
		return
	}
	*dst = n
}

// raw gives the spelling of the next value.
func (p *manifestParser) raw() []byte {
	p.s.peek()
	start := p.s.off
	p.s.skip()
	return p.s.b[start:p.s.off]
}

func (p *manifestParser) mismatch(want string) {
	var is string
	switch p.s.peek() {
	case '{':
		is = "an object"
	case '[':
		is = "an array"
	case '"':
		is = "a string"
	case 't', 'f':
		is = "a boolean"
	case 'n':
		is = "null"
	default:
		is = "a number"
	}
	p.problems.unreadable(string(p.path), "must be "+want+", not "+is)
	p.s.skip()
}

// appendMember appends a member's name to a path.
func appendMember(path []byte, name string) []byte {
	for i := range len(name) {
		if c := name[i] | 0x20; (c < 'a' || c > 'z') && name[i] != '_' {
			return append(append(append(path, '['), quote(name)...), ']')
		}
	}
	if len(path) > 0 {
		path = append(path, '.')
	}
	return append(path, clip(name)...)
}

// quote quotes text of the manifest for a message; it may be long and ugly.
func quote(s string) string { return strconv.QuoteToGraphic(clip(s)) }

func clip(s string) string {
	const limit = 60
	if len(s) <= limit {
		return s
	}
	cut := limit
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// UnmarshalJSON reads a rule in its form of ABI v1.
func (k *KeyRule) UnmarshalJSON(b []byte) error {
	*k = KeyRule{}
	syntax := scanner{b: b}
	if !syntax.document() {
		return &ManifestError{Problems: []string{"a key rule is not JSON"}}
	}
	p := manifestParser{s: scanner{b: b}}
	p.keyRule(k)
	checkPointers(&p.problems, "", k)
	if len(p.problems.list) > 0 {
		*k = KeyRule{}
		return &ManifestError{Problems: p.problems.list}
	}
	return nil
}

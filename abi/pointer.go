package abi

// PointerState tells what a JSON pointer came upon.
type PointerState uint8

// What a pointer may come upon.
const (
	// PointerAbsent: nothing, null or the empty string. The message is of no
	// interest by this pointer.
	PointerAbsent PointerState = iota
	// PointerKey: a string, or a number, which counts as it is spelled.
	PointerKey
	// PointerUnresolved: a boolean, an object, an array, or data that is not
	// JSON. Which keys the message concerns cannot be told.
	PointerUnresolved
)

// PointerResult is what a JSON pointer came upon. Key is set for PointerKey. It
// is a view of the data unless it had escapes; whoever keeps it longer than the
// data clones it.
//
// A key that can be told but not stored (see [CheckKey]) is its [StandIn], and
// StandIn is true.
type PointerResult struct {
	State   PointerState
	StandIn bool
	Key     string
}

// Pointers is a set of RFC 6901 JSON pointers, looked up in one pass. It is
// immutable.
type Pointers struct {
	nodes []pointerNode // the tokens as a tree; nodes[0] is the whole document
	count int
}

type pointerNode struct {
	token    string // decoded
	index    int    // of an array element; -1 if token is none
	children []int  // in nodes
	ends     []int  // pointers that end here
	below    []int  // pointers that end here or below
}

// CompilePointers prepares pointers. It refuses what RFC 6901 does not allow.
func CompilePointers(pointers ...string) (*Pointers, error) {
	p := &Pointers{nodes: []pointerNode{{index: -1}}, count: len(pointers)}
	for id, pointer := range pointers {
		tokens, reason := splitPointer(pointer)
		if reason != "" {
			return nil, &MalformedError{What: "JSON pointer " + pointer, Reason: reason}
		}
		n := 0
		p.nodes[n].below = append(p.nodes[n].below, id)
		for _, token := range tokens {
			n = p.child(n, token)
			p.nodes[n].below = append(p.nodes[n].below, id)
		}
		p.nodes[n].ends = append(p.nodes[n].ends, id)
	}
	return p, nil
}

// child finds or makes the child of node n for a token.
func (p *Pointers) child(n int, token string) int {
	for _, c := range p.nodes[n].children {
		if p.nodes[c].token == token {
			return c
		}
	}
	c := len(p.nodes)
	p.nodes = append(p.nodes, pointerNode{token: token, index: arrayIndex(token)})
	p.nodes[n].children = append(p.nodes[n].children, c)
	return c
}

// arrayIndex is the index a token names: digits without leading zeros, else -1.
// The token "-" names the element after the last, which does not exist.
func arrayIndex(token string) int {
	if token == "" || len(token) > 9 || len(token) > 1 && token[0] == '0' {
		return -1
	}
	n := 0
	for i := range len(token) {
		if token[i] < '0' || token[i] > '9' {
			return -1
		}
		n = n*10 + int(token[i]-'0')
	}
	return n
}

// splitPointer decodes a pointer's tokens, or tells what is wrong with it.
func splitPointer(pointer string) (tokens []string, reason string) {
	if pointer == "" {
		return nil, ""
	}
	if pointer[0] != '/' {
		return nil, "it does not begin with a slash"
	}
	var token []byte
	for i := 1; i < len(pointer); i++ {
		switch c := pointer[i]; c {
		case '/':
			tokens = append(tokens, string(token))
			token = token[:0]
		case '~':
			i++
			switch {
			case i < len(pointer) && pointer[i] == '0':
				token = append(token, '~')
			case i < len(pointer) && pointer[i] == '1':
				token = append(token, '/')
			default:
				return nil, "a tilde is written ~0, a slash in a name ~1"
			}
		default:
			token = append(token, c)
		}
	}
	return append(tokens, string(token)), ""
}

// Len is the number of pointers.
func (p *Pointers) Len() int { return p.count }

// Extract appends one result for each pointer, in their order. Of members with
// the same name the last counts. Data that is not JSON, or not JSON to its end,
// leaves every pointer unresolved.
func (p *Pointers) Extract(dst []PointerResult, data []byte) []PointerResult {
	w := pointerWalk{nodes: p.nodes, scanner: scanner{b: data}}
	ok := w.run(p.count)
	for id := range p.count {
		r := *w.result(id)
		if !ok {
			r = PointerResult{State: PointerUnresolved}
		}
		dst = append(dst, r)
	}
	return dst
}

// Keys appends the keys of a message: a set, in which a key named twice keeps
// its first place. Without any the message is of no interest. It is false if a
// pointer is unresolved: then the keys cannot be told, and dst is as it was.
func (p *Pointers) Keys(dst []string, data []byte) ([]string, bool) {
	base := len(dst)
	w := pointerWalk{nodes: p.nodes, scanner: scanner{b: data}}
	if !w.run(p.count) {
		return dst, false
	}
next:
	for id := range p.count {
		r := w.result(id)
		switch r.State {
		case PointerUnresolved:
			return dst[:base], false
		case PointerKey:
			for _, k := range dst[base:] {
				if k == r.Key {
					continue next
				}
			}
			dst = append(dst, r.Key)
		}
	}
	return dst, true
}

// Pointer looks up one RFC 6901 JSON pointer in raw JSON. On a hot path, compile
// it once ([CompilePointers]). A pointer that is not valid finds nothing.
func Pointer(data []byte, pointer string) PointerResult {
	p, err := CompilePointers(pointer)
	if err != nil {
		return PointerResult{State: PointerUnresolved}
	}
	return p.Extract(nil, data)[0]
}

type pointerWalk struct {
	scanner
	nodes []pointerNode
	// The results of the first pointers have a place here, so that they need
	// no memory of their own.
	few  [4]PointerResult
	more []PointerResult
}

func (w *pointerWalk) result(id int) *PointerResult {
	if id < len(w.few) {
		return &w.few[id]
	}
	return &w.more[id-len(w.few)]
}

// run reads the whole data. If it returns false, no result holds.
func (w *pointerWalk) run(pointers int) bool {
	if pointers > len(w.few) {
		w.more = make([]PointerResult, pointers-len(w.few))
	}
	return w.value(&w.nodes[0]) && w.end()
}

// value reads the value at a node.
func (w *pointerWalk) value(n *pointerNode) bool {
	switch w.peek() {
	case '{':
		w.set(n, PointerResult{State: PointerUnresolved})
		return w.object(n)
	case '[':
		w.set(n, PointerResult{State: PointerUnresolved})
		return w.array(n)
	case '"':
		raw, escaped, ok := w.str()
		if !ok {
			return false
		}
		if len(n.ends) > 0 && len(raw) > 0 {
			if escaped {
				raw = unquote(nil, raw)
			}
			w.set(n, keyResult(raw))
		}
		return true
	case 't', 'f':
		w.set(n, PointerResult{State: PointerUnresolved})
		return w.skip()
	case 'n':
		return w.skip()
	}
	raw, ok := w.number()
	if ok && len(n.ends) > 0 {
		w.set(n, keyResult(raw))
	}
	return ok
}

func (w *pointerWalk) set(n *pointerNode, r PointerResult) {
	for _, id := range n.ends {
		*w.result(id) = r
	}
}

func (w *pointerWalk) object(n *pointerNode) bool {
	for first := true; ; first = false {
		more, ok := w.member(first)
		if !more || !ok {
			return ok
		}
		raw, escaped, ok := w.name()
		if !ok {
			return false
		}
		if child := w.find(n, raw, escaped); child == nil {
			ok = w.skip()
		} else {
			// A later member replaces an earlier one of the same name whole.
			for _, id := range child.below {
				*w.result(id) = PointerResult{}
			}
			ok = w.value(child)
		}
		if !ok {
			return false
		}
	}
}

func (w *pointerWalk) array(n *pointerNode) bool {
	for i := 0; ; i++ {
		more, ok := w.element(i == 0)
		if !more || !ok {
			return ok
		}
		var child *pointerNode
		for _, c := range n.children {
			if w.nodes[c].index == i {
				child = &w.nodes[c]
			}
		}
		if child == nil {
			ok = w.skip()
		} else {
			ok = w.value(child)
		}
		if !ok {
			return false
		}
	}
}

// find gives the child of n for the name of a member, nil if there is none.
func (w *pointerWalk) find(n *pointerNode, raw []byte, escaped bool) *pointerNode {
	if len(n.children) == 0 {
		return nil
	}
	if escaped {
		var short [64]byte
		raw = unquote(short[:0], raw)
	}
	for _, c := range n.children {
		if w.nodes[c].token == string(raw) {
			return &w.nodes[c]
		}
	}
	return nil
}

func keyResult(key []byte) PointerResult {
	if checkKey(key) != "" {
		return PointerResult{State: PointerKey, StandIn: true, Key: StandIn(key)}
	}
	return PointerResult{State: PointerKey, Key: viewString(key)}
}

// StandIn is the key under which a key is held that cannot be stored:
// "#sha256:" and the hex SHA-256 of its UTF-8 bytes. So only that key is
// concerned, in the partition of the stand-in, and not all messages behind it.
func StandIn(key []byte) string {
	const hex = "0123456789abcdef"
	s := []byte("#sha256:")
	for _, c := range sha256Sum(key) {
		s = append(s, hex[c>>4], hex[c&15])
	}
	return string(s)
}

// StorableKey gives key as a string of its own if every engine can store it,
// else its [StandIn] and false.
func StorableKey(key []byte) (string, bool) {
	if checkKey(key) != "" {
		return StandIn(key), false
	}
	return string(key), true
}

package abi

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	maxName      = 48
	maxTextMax   = 1 << 20
	maxIndexed   = 255 // text that is indexed or unique
	maxPrecision = 38
	maxVersion   = 64
)

// check adds what is wrong with m and fills in what has a default.
func (m *Manifest) check(ps *problems) {
	switch m.ABI {
	case 1:
	case 0:
		ps.add("abi", "is needed: 1")
	default:
		ps.add("abi", "is "+strconv.Itoa(m.ABI)+"; this is ABI 1")
	}
	checkName(ps, "name", m.Name)
	switch {
	case m.Version == "":
		ps.add("version", "is needed")
	case !ValidText([]byte(m.Version)) || utf8.RuneCountInString(m.Version) > maxVersion:
		ps.add("version", "is longer than "+strconv.Itoa(maxVersion)+" characters")
	}
	checkCapabilities(ps, m.Capabilities)
	if _, ok := parseSize(m.Heap); m.Heap != "" && !ok {
		ps.add("heap", quote(m.Heap)+" is no size such as \"16MiB\"")
	}
	if len(m.Consumers) == 0 {
		ps.add("consumers", "needs at least one")
	}
	names, tables := map[string]string{}, map[string]string{}
	for i := range m.Consumers {
		path := at("consumers", i)
		checkConsumer(ps, path, &m.Consumers[i], names, tables)
	}
}

func checkCapabilities(ps *problems, list []string) {
	seen := map[string]bool{}
	for i, c := range list {
		path := at("capabilities", i)
		word, _, _ := strings.Cut(c, ":")
		if !isName(word, true) || checkKey([]byte(c)) != "" {
			ps.add(path, quote(c)+" is no capability such as \"send:invoices\"")
		}
		if seen[c] {
			ps.add(path, quote(c)+" is there twice")
		}
		seen[c] = true
	}
}

// HeapBytes is the size the manifest asks for in heap; 0: none.
func (m *Manifest) HeapBytes() uint64 {
	n, _ := parseSize(m.Heap)
	return n
}

// parseSize reads a number and one of the units KiB, MiB and GiB.
func parseSize(s string) (n uint64, ok bool) {
	if len(s) < 4 {
		return 0, false
	}
	shift := map[string]int{"KiB": 10, "MiB": 20, "GiB": 30}[s[len(s)-3:]]
	n, err := strconv.ParseUint(s[:len(s)-3], 10, 32)
	if err != nil || shift == 0 || n == 0 || s[0] == '+' || n<<shift > 4<<30 {
		return 0, false
	}
	return n << shift, true
}

// checkConsumer checks one consumer. Names and tables hold what the consumers
// before it took, lower-cased, with the path.
func checkConsumer(ps *problems, path string, c *Consumer, names, tables map[string]string) {
	switch c.Type {
	case Projection, Saga, Handler:
	default:
		ps.add(path+".type", quote(c.Type)+" is none of projection, saga, handler")
	}
	checkName(ps, path+".name", c.Name)
	take(ps, names, c.Type+" ", c.Name, path+".name")
	if len(c.Aliases) > 0 && c.Type != Handler {
		ps.add(path+".aliases", "only handlers have aliases")
	}
	for i, alias := range c.Aliases {
		checkName(ps, at(path+".aliases", i), alias)
		take(ps, names, c.Type+" ", alias, at(path+".aliases", i))
	}
	switch c.Distribution {
	case "":
		c.Distribution = Spread
	case Spread, SingleOwner:
	default:
		ps.add(path+".distribution", quote(c.Distribution)+" is neither spread nor single-owner")
	}
	if c.StateVersion < 0 {
		ps.add(path+".state_version", "is negative")
	}
	if len(c.Inputs) == 0 {
		ps.add(path+".inputs", "needs at least one")
	}
	for i := range c.Inputs {
		checkInput(ps, at(path+".inputs", i), c, &c.Inputs[i])
	}
	switch {
	case c.Type == Projection && len(c.Tables) == 0:
		ps.add(path+".tables", "a projection needs at least one")
	case c.Type == Saga && len(c.Tables) != 1:
		ps.add(path+".tables", "a saga has exactly one, for its state")
	case c.Type == Handler && len(c.Tables) != 0:
		ps.add(path+".tables", "a handler has none")
	}
	for i := range c.Tables {
		t := at(path+".tables", i)
		take(ps, tables, "", c.Tables[i].Name, t+".name")
		checkTable(ps, t, c, &c.Tables[i])
	}
}

func checkInput(ps *problems, path string, c *Consumer, in *Input) {
	if !isTopic(in.Topic) {
		ps.add(path+".topic", quote(in.Topic)+" is no topic such as \"events\" or \"read-model:orders\"")
	}
	for i, t := range in.AggregateTypes {
		if t == "*" {
			ps.add(at(path+".aggregate_types", i), "leave aggregate_types out to get all")
		}
	}
	if in.AggregateTypes != nil && len(in.AggregateTypes) == 0 {
		ps.add(path+".aggregate_types", "names none; leave it out to get all")
	}
	checkTypes(ps, path+".aggregate_types", in.AggregateTypes)
	if len(in.Types) == 0 {
		ps.add(path+".types", "needs at least one, or [\"*\"] for all")
	}
	for i, t := range in.Types {
		if t == "*" && len(in.Types) > 1 {
			ps.add(at(path+".types", i), "\"*\" stands alone")
		}
	}
	checkTypes(ps, path+".types", in.Types)

	checkPointers(ps, path+".key", &in.Key)
	switch {
	case in.Associations != nil && c.Type != Saga:
		ps.add(path+".associations", "only sagas are looked up by association")
	case in.Associations != nil && in.Key.Kind != KeyNone:
		ps.add(path+".associations", "stand beside a key; only one of the two is allowed")
	case in.Associations != nil && len(in.Associations) == 0:
		ps.add(path+".associations", "needs at least one")
	case in.Associations == nil && in.Key.Kind == KeyNone:
		ps.add(path+".key", "is needed")
	}
	for _, name := range sortedNames(in.Associations) {
		p := string(appendMember([]byte(path+".associations"), name))
		checkName(ps, p, name)
		if _, reason := splitPointer(in.Associations[name]); reason != "" {
			ps.add(p, quote(in.Associations[name])+" is no JSON pointer: "+reason)
		}
	}
	if in.KeysVersion < 0 || in.KeysVersion > 0 && in.Key.Kind != KeyFunction {
		ps.add(path+".keys_version", "belongs to \"key\": \"function\" only")
	}
}

// checkTypes checks a list of event or aggregate types.
func checkTypes(ps *problems, path string, types []string) {
	seen := make(map[string]bool, len(types))
	for i, t := range types {
		if reason := checkKey([]byte(t)); reason != "" {
			ps.add(at(path, i), quote(t)+" "+reason)
		}
		if seen[t] {
			ps.add(at(path, i), quote(t)+" is there twice")
		}
		seen[t] = true
	}
}

func checkPointers(ps *problems, path string, k *KeyRule) {
	if k.Kind != KeyPointers {
		return
	}
	if len(k.Pointers) == 0 {
		ps.add(path, "names no pointer")
	}
	for _, pointer := range k.Pointers {
		if _, reason := splitPointer(pointer); reason != "" {
			ps.add(path, quote(pointer)+" is no JSON pointer: "+reason)
		}
	}
}

func checkTable(ps *problems, path string, c *Consumer, t *Table) {
	checkIdentifier(ps, path+".name", t.Name)
	if t.Free && c.Distribution != SingleOwner {
		ps.add(path+".free", "needs \"distribution\": \"single-owner\": only there is one total order")
	}
	if c.Type == Saga && (t.Free || t.Parent != "") {
		ps.add(path, "the table of a saga is keyed by the saga: neither free nor a child table")
	}
	if t.Parent != "" {
		checkParent(ps, path, c, t)
	}
	if t.Child != nil {
		checkPointers(ps, path+".child", t.Child)
		switch {
		case t.Parent == "":
			ps.add(path+".child", "belongs to a child table, one with a parent")
		case t.Child.Kind == KeyFunction || t.Child.Kind == KeyPointers && len(t.Child.Pointers) != 1:
			ps.add(path+".child", "is \"aggregate_id\" or one pointer")
		}
	}
	if len(t.Columns) > MaxColumns {
		ps.add(path+".columns", "has more than "+strconv.Itoa(MaxColumns)+" entries")
		return
	}
	names := map[string]string{}
	for i := range t.Columns {
		p := at(path+".columns", i)
		checkIdentifier(ps, p+".name", t.Columns[i].Name)
		take(ps, names, "", t.Columns[i].Name, p+".name")
		checkColumn(ps, p, c, t, &t.Columns[i])
	}
}

func checkParent(ps *problems, path string, c *Consumer, t *Table) {
	var parent *Table
	for i := range c.Tables {
		if c.Tables[i].Name == t.Parent {
			parent = &c.Tables[i]
		}
	}
	switch {
	case parent == nil:
		ps.add(path+".parent", quote(t.Parent)+" is no table of this consumer")
	case parent == t || parent.Name == t.Name:
		ps.add(path+".parent", "is the table itself")
	case parent.Parent != "":
		ps.add(path+".parent", quote(t.Parent)+" is a child table itself; children have none")
	case parent.Free != t.Free:
		ps.add(path+".free", "must be what it is for its parent "+quote(t.Parent))
	}
}

func checkColumn(ps *problems, path string, c *Consumer, t *Table, col *Column) {
	switch col.Kind {
	case ColumnText, ColumnInt, ColumnDecimal, ColumnFloat, ColumnBool, ColumnDate, ColumnTime,
		ColumnTimestamp, ColumnUUID, ColumnBytes, ColumnJSON:
	default:
		ps.add(path+".kind", quote(col.Kind)+" is none of text, int, decimal, float, bool, date, time, "+
			"timestamp, uuid, bytes, json")
		return
	}
	if col.Max != 0 && col.Kind != ColumnText {
		ps.add(path+".max", "belongs to text only")
	}
	if col.Kind == ColumnDecimal {
		if col.Precision < 1 || col.Precision > maxPrecision {
			ps.add(path+".precision", "must be from 1 to "+strconv.Itoa(maxPrecision))
		} else if col.Scale < 0 || col.Scale > col.Precision {
			ps.add(path+".scale", "must be from 0 to the precision, "+strconv.Itoa(col.Precision))
		}
	} else {
		if col.Precision != 0 {
			ps.add(path+".precision", "belongs to decimal only")
		}
		if col.Scale != 0 {
			ps.add(path+".scale", "belongs to decimal only")
		}
	}
	checkIndex(ps, path, c, col)
	checkFrom(ps, path, t, col)
	if col.Default != nil {
		if _, reason := col.defaultValue(); reason != "" {
			ps.add(path+".default", reason)
		}
	}
}

func checkIndex(ps *problems, path string, c *Consumer, col *Column) {
	if !col.Index && !col.Unique {
		return
	}
	word := ".index"
	if col.Unique {
		word = ".unique"
		if c.Distribution != SingleOwner {
			ps.add(path+word, "needs \"distribution\": \"single-owner\": elsewhere who comes first depends on timing")
		}
	}
	switch {
	case col.Kind == ColumnJSON || col.Kind == ColumnBytes:
		ps.add(path+word, "a "+col.Kind+" column cannot have one")
	case col.Kind == ColumnText && (col.Max == 0 || col.Max > maxIndexed):
		ps.add(path+word, "text needs \"max\" of at most "+strconv.Itoa(maxIndexed)+" for it")
	}
}

func checkFrom(ps *problems, path string, t *Table, col *Column) {
	switch {
	case col.From == "" && col.Of == "":
		return
	case col.From == "":
		ps.add(path+".from", "is needed beside of")
		return
	case col.Of == "":
		ps.add(path+".of", "is needed beside from: the json column it points into")
		return
	}
	if _, reason := splitPointer(col.From); reason != "" {
		ps.add(path+".from", quote(col.From)+" is no JSON pointer: "+reason)
	}
	for i := range t.Columns {
		of := &t.Columns[i]
		if of.Name != col.Of {
			continue
		}
		if of.Kind != ColumnJSON || of.From != "" {
			ps.add(path+".of", quote(col.Of)+" is no json column written by the guest")
		}
		return
	}
	ps.add(path+".of", quote(col.Of)+" is no column of this table")
}

// take gives a name to a path, unless it is taken. Names are compared without
// case.
func take(ps *problems, taken map[string]string, space, name, path string) {
	if name == "" {
		return
	}
	id := space + strings.ToLower(name)
	if owner, ok := taken[id]; ok {
		ps.add(path, quote(name)+" is taken by "+owner+" (names are compared without case)")
		return
	}
	taken[id] = path
}

// checkName checks the name of a plugin or consumer.
func checkName(ps *problems, path, name string) {
	switch {
	case name == "":
		ps.add(path, "is needed")
	case !isName(name, true):
		ps.add(path, quote(name)+" is no name: a letter, then letters, digits, _ or -, at most "+
			strconv.Itoa(maxName)+" in all")
	}
}

// checkIdentifier checks the name of a table or column, which becomes one in
// SQL.
func checkIdentifier(ps *problems, path, name string) {
	lower := strings.ToLower(name)
	switch {
	case name == "":
		ps.add(path, "is needed")
	case !isName(name, false):
		ps.add(path, quote(name)+" is no name of a table or column: a letter, then letters, digits or _, at most "+
			strconv.Itoa(maxName)+" in all")
	case strings.HasPrefix(lower, "ph_") || lower == "key" || lower == "child":
		ps.add(path, quote(name)+" is reserved: key, child and names that begin with ph_ are the host's")
	}
}

func isName(s string, hyphen bool) bool {
	for i := range len(s) {
		c := s[i] | 0x20
		switch {
		case 'a' <= c && c <= 'z':
		case i > 0 && ('0' <= s[i] && s[i] <= '9' || s[i] == '_' || s[i] == '-' && hyphen):
		default:
			return false
		}
	}
	return s != "" && len(s) <= maxName
}

// isTopic allows a name and, after a colon, a second one.
func isTopic(s string) bool {
	head, tail, more := strings.Cut(s, ":")
	return isName(head, true) && (!more || isName(tail, true))
}

func at(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

func sortedNames(m map[string]string) []string {
	var names []string
	for name := range m {
		i := len(names)
		names = append(names, name)
		for ; i > 0 && names[i-1] > name; i-- {
			names[i] = names[i-1]
		}
		names[i] = name
	}
	return names
}

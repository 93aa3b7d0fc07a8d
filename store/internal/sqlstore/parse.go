package sqlstore

import (
	"strings"

	"github.com/projhost/projhost/readmodel"
)

// What the schema files say is read here, so that it can be compared with what
// a database has. They are ours and strictly formatted; what is not understood
// is no statement that creates something.

// statements cuts a script at every ";" that ends a line. Comments have lines
// of their own and are left out.
func statements(script string) []string {
	var list []string
	var b strings.Builder
	for line := range strings.Lines(script) {
		line = strings.TrimRight(line, " \t\r\n")
		if trimmed := strings.TrimSpace(line); trimmed == "" || strings.HasPrefix(trimmed, "--") {
			continue
		}
		text, ends := strings.CutSuffix(line, ";")
		b.WriteString(text)
		if !ends {
			b.WriteByte('\n')
			continue
		}
		list = append(list, b.String())
		b.Reset()
	}
	if rest := strings.TrimSpace(b.String()); rest != "" {
		list = append(list, rest)
	}
	return list
}

// What a statement creates.
const (
	createsTable = iota
	createsIndex
	createsColumn
)

type statement struct {
	kind   int
	table  string
	whole  readmodel.ActualTable  // createsTable
	index  readmodel.ActualIndex  // createsIndex
	column readmodel.ActualColumn // createsColumn
}

// parseStatement reads CREATE TABLE, CREATE INDEX and ALTER TABLE … ADD; ok is
// false for anything else.
func parseStatement(text string) (s statement, ok bool) {
	p := parser{tokens(text)}
	for ; len(p.rest) > 0; p.rest = p.rest[1:] {
		switch {
		case p.words("CREATE", "TABLE"):
			s.kind = createsTable
			p.words("IF", "NOT", "EXISTS")
			s.table = p.name()
			s.whole, ok = p.table()
			return s, ok && s.table != ""
		case p.words("CREATE", "UNIQUE", "INDEX"), p.words("CREATE", "UNIQUE", "NONCLUSTERED", "INDEX"):
			s.index.Unique = true
			return p.createIndex(s)
		case p.words("CREATE", "INDEX"), p.words("CREATE", "NONCLUSTERED", "INDEX"):
			return p.createIndex(s)
		case p.words("ALTER", "TABLE"):
			s.kind = createsColumn
			s.table = p.name()
			if !p.words("ADD") {
				return s, false
			}
			p.words("COLUMN")
			var t readmodel.ActualTable
			addColumn(&t, p.rest)
			if len(t.Columns) != 1 {
				return s, false
			}
			s.column = t.Columns[0]
			return s, s.table != ""
		}
	}
	return s, false
}

func (p *parser) createIndex(s statement) (statement, bool) {
	s.kind = createsIndex
	s.index.Name = p.name()
	if !p.words("ON") {
		return s, false
	}
	s.table = p.name()
	if p.words("USING") {
		p.name()
	}
	s.index.Columns = columnList(p.group())
	if p.words("INCLUDE") {
		s.index.Columns = append(s.index.Columns, columnList(p.group())...)
	}
	s.index.Partial = p.words("WHERE")
	return s, s.table != "" && len(s.index.Columns) > 0
}

// token is a word, a quoted name, a text in '…', or a single other character.
type token struct {
	text   string
	quoted bool
}

func (t token) is(word string) bool { return !t.quoted && strings.EqualFold(t.text, word) }

func (t token) isName() bool { return t.quoted || t.text != "" && isWord(t.text[0]) }

func isWord(c byte) bool {
	return c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' || c >= 0x80
}

func tokens(text string) []token {
	var list []token
	for i := 0; i < len(text); {
		c := text[i]
		end, quoted := i+1, false
		switch {
		case c == ' ' || c == '\n' || c == '\t' || c == '\r':
			i++
			continue
		case strings.HasPrefix(text[i:], "--"):
			n := strings.IndexByte(text[i:], '\n')
			if n < 0 {
				return list
			}
			i += n
			continue
		case c == '"' || c == '`' || c == '[' || c == '\'':
			closing := c
			if c == '[' {
				closing = ']'
			}
			n := strings.IndexByte(text[i+1:], closing)
			if n < 0 {
				return list
			}
			end = i + n + 2
			if c != '\'' {
				quoted = true
				list = append(list, token{text[i+1 : end-1], true})
			}
		case isWord(c):
			for end < len(text) && isWord(text[end]) {
				end++
			}
		}
		if !quoted {
			list = append(list, token{text[i:end], false})
		}
		i = end
	}
	return list
}

// parser takes tokens from the front.
type parser struct{ rest []token }

// words takes a sequence of words if it comes next.
func (p *parser) words(words ...string) bool {
	if len(p.rest) < len(words) {
		return false
	}
	for i, w := range words {
		if !p.rest[i].is(w) {
			return false
		}
	}
	p.rest = p.rest[len(words):]
	return true
}

// name takes a name, the last part of a qualified one.
func (p *parser) name() (name string) {
	for len(p.rest) > 0 && p.rest[0].isName() {
		name = p.rest[0].text
		p.rest = p.rest[1:]
		if !p.words(".") {
			break
		}
	}
	return name
}

// group takes what stands in parentheses, without them.
func (p *parser) group() []token {
	if len(p.rest) == 0 || !p.rest[0].is("(") {
		return nil
	}
	depth := 0
	for i, t := range p.rest {
		switch {
		case t.is("("):
			depth++
		case t.is(")"):
			depth--
		}
		if depth == 0 {
			inner := p.rest[1:i]
			p.rest = p.rest[i+1:]
			return inner
		}
	}
	p.rest = nil
	return nil
}

// items cuts at the commas outside of parentheses.
func items(list []token) [][]token {
	var out [][]token
	depth, from := 0, 0
	for i, t := range list {
		switch {
		case t.is("("):
			depth++
		case t.is(")"):
			depth--
		case t.is(",") && depth == 0:
			out = append(out, list[from:i])
			from = i + 1
		}
	}
	return append(out, list[from:])
}

// columnList is the names of "(a, b DESC)".
func columnList(list []token) []string {
	var names []string
	for _, item := range items(list) {
		if len(item) > 0 && item[0].isName() {
			names = append(names, item[0].text)
		}
	}
	return names
}

func (p *parser) table() (t readmodel.ActualTable, ok bool) {
	var key []string
	for _, item := range items(p.group()) {
		q := parser{item}
		if q.words("CONSTRAINT") {
			q.name()
		}
		unique := false
		switch {
		case q.words("PRIMARY", "KEY"):
			_ = q.words("CLUSTERED") || q.words("NONCLUSTERED")
			key = columnList(q.group())
		case q.words("CHECK"), q.words("FOREIGN"):
		case q.words("UNIQUE"):
			unique = true
			fallthrough
		case q.words("KEY"), q.words("INDEX"):
			_ = q.words("KEY") || q.words("INDEX")
			name := q.name()
			t.Indexes = append(t.Indexes, readmodel.ActualIndex{Name: name, Columns: columnList(q.group()), Unique: unique})
		default:
			addColumn(&t, q.rest)
		}
	}
	for i, name := range key {
		if c, ok := findColumn(t.Columns, name); ok {
			c.PrimaryKey, c.Nullable = i+1, false
		}
	}
	return t, len(t.Columns) > 0
}

// endsType are the words behind a column's type.
var endsType = map[string]bool{"COLLATE": true, "NOT": true, "NULL": true, "DEFAULT": true, "GENERATED": true, "AS": true, "PRIMARY": true,
	"UNIQUE": true, "REFERENCES": true, "CONSTRAINT": true, "CHECK": true, "IDENTITY": true, "AUTO_INCREMENT": true, "CHARSET": true}

// addColumn adds "name type attributes".
func addColumn(t *readmodel.ActualTable, list []token) {
	p := parser{list}
	c := readmodel.ActualColumn{Nullable: true}
	if c.Name = p.name(); c.Name == "" {
		return
	}
	c.Type = p.columnType()
	for len(p.rest) > 0 {
		switch {
		case p.words("NOT", "NULL"):
			c.Nullable = false
		case p.words("COLLATE"):
			c.Collation = p.name()
		case p.words("DEFAULT"):
			c.HasDefault = true
			if len(p.rest) > 0 && !p.rest[0].is("(") {
				p.rest = p.rest[1:]
			}
			p.group()
		case p.words("AS", "IDENTITY"), p.words("IDENTITY"), p.words("AUTO_INCREMENT"):
			c.HasDefault, c.Nullable = true, false
			p.group()
		case p.words("AS"): // computed
			c.HasDefault = true
			p.group()
		case p.words("PRIMARY", "KEY"):
			c.PrimaryKey, c.Nullable = 1, false
		case p.words("UNIQUE"):
			t.Indexes = append(t.Indexes, readmodel.ActualIndex{Columns: []string{c.Name}, Unique: true})
		case p.words("REFERENCES"):
			p.name()
			p.group()
		case p.rest[0].is("("):
			p.group()
		default:
			p.rest = p.rest[1:]
		}
	}
	t.Columns = append(t.Columns, c)
}

// columnType takes a type, spelled as catalogues do: "character varying(255)".
func (p *parser) columnType() string {
	var b strings.Builder
	for len(p.rest) > 0 {
		t := p.rest[0]
		if !t.quoted && endsType[strings.ToUpper(t.text)] || t.is("CHARACTER") && len(p.rest) > 1 && p.rest[1].is("SET") {
			break
		}
		if t.is("(") {
			b.WriteByte('(')
			for _, inner := range p.group() {
				b.WriteString(inner.text)
			}
			b.WriteByte(')')
			continue
		}
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(t.text)
		p.rest = p.rest[1:]
	}
	return b.String()
}

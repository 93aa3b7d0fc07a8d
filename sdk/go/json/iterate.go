package json

import "iter"

// Members walks the members of an object in their order:
//
//	m := v.Members()
//	for m.Next() {
//		switch m.Name() {
//		case "amount": …
//		}
//	}
//	if err := m.Err(); err != nil { … }
//
// It is the way to read several members in one pass.
type Members struct {
	s           string
	i           int
	name        string
	value       Value
	escapedName bool
	err         bool
}

// Members starts a walk over an object's members. Anything else has none.
func (v Value) Members() Members {
	if v.Kind() != Object {
		return Members{err: v.raw != "" && v.raw != "null"}
	}
	return Members{s: v.raw, i: skipSpace(v.raw, 1)}
}

// Next steps to the next member and reports whether there is one.
func (m *Members) Next() bool {
	s, i := m.s, m.i
	if i >= len(s) {
		return m.stop(s != "" && i == len(s))
	}
	if s[i] == '}' {
		return m.stop(i != len(s)-1)
	}
	if s[i] != '"' {
		return m.stop(true)
	}
	end, escaped := skipString(s, i+1)
	if end < 0 {
		return m.stop(true)
	}
	m.name, m.escapedName = s[i+1:end-1], escaped
	i = skipSpace(s, end)
	if i >= len(s) || s[i] != ':' {
		return m.stop(true)
	}
	from := skipSpace(s, i+1)
	if i = skipValue(s, from); i < 0 {
		return m.stop(true)
	}
	m.value = Value{s[from:i]}
	m.i = behindComma(s, i, '}')
	return true
}

func (m *Members) stop(malformed bool) bool {
	m.err = m.err || malformed
	m.s, m.i, m.name, m.value = "", 0, "", Value{}
	return false
}

// Name returns the member's name, unescaped.
func (m *Members) Name() string {
	if m.escapedName {
		return unescape(m.name)
	}
	return m.name
}

// Value returns the member's value.
func (m *Members) Value() Value { return m.value }

// Err tells, after the walk, whether it ended for another reason than the end
// of the object. A walk over null or an absent value is empty and no error.
func (m *Members) Err() error {
	if m.err {
		return &Error{Want: "an object", Have: "no well-formed object"}
	}
	return nil
}

// Elements walks the elements of an array; use it as [Members].
type Elements struct {
	s     string
	i     int
	value Value
	err   bool
}

// Elements starts a walk over an array's elements. Anything else has none.
func (v Value) Elements() Elements {
	if v.Kind() != Array {
		return Elements{err: v.raw != "" && v.raw != "null"}
	}
	return Elements{s: v.raw, i: skipSpace(v.raw, 1)}
}

// Next steps to the next element and reports whether there is one.
func (e *Elements) Next() bool {
	s, i := e.s, e.i
	if i >= len(s) {
		return e.stop(s != "" && i == len(s))
	}
	if s[i] == ']' {
		return e.stop(i != len(s)-1)
	}
	end := skipValue(s, i)
	if end < 0 {
		return e.stop(true)
	}
	e.value = Value{s[i:end]}
	e.i = behindComma(s, end, ']')
	return true
}

func (e *Elements) stop(malformed bool) bool {
	e.err = e.err || malformed
	e.s, e.i, e.value = "", 0, Value{}
	return false
}

// Value returns the element.
func (e *Elements) Value() Value { return e.value }

// Err is as [Members.Err].
func (e *Elements) Err() error {
	if e.err {
		return &Error{Want: "an array", Have: "no well-formed array"}
	}
	return nil
}

// behindComma returns where the next member or element starts, the closing
// bracket's place at the end, or len(s), which no well-formed value reaches.
func behindComma(s string, i int, closing byte) int {
	i = skipSpace(s, i)
	if i >= len(s) || s[i] == closing {
		return i
	}
	if s[i] != ',' {
		return len(s)
	}
	i = skipSpace(s, i+1)
	if i < len(s) && s[i] == closing {
		return len(s) // a trailing comma
	}
	return i
}

// All ranges over the members, for code that prefers a range loop to a few
// nanoseconds; a malformed rest ends it.
func (v Value) All() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		m := v.Members()
		for m.Next() && yield(m.Name(), m.Value()) {
		}
	}
}

// Values ranges over the elements, like [Value.All].
func (v Value) Values() iter.Seq[Value] {
	return func(yield func(Value) bool) {
		e := v.Elements()
		for e.Next() && yield(e.Value()) {
		}
	}
}

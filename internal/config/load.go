package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
)

// Problem is one thing wrong with a configuration.
type Problem struct {
	Line int    // 0: not in the file
	Key  string // "" where no key is to blame
	Text string
}

// Error is everything wrong with a configuration.
type Error struct {
	File     string // "" where there is none
	Problems []Problem
}

// Error gives a line per problem: file:line: key: text.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		var b strings.Builder
		if e.File != "" {
			b.WriteString(e.File)
			if p.Line > 0 {
				fmt.Fprintf(&b, ":%d", p.Line)
			}
			b.WriteString(": ")
		}
		if p.Key != "" {
			b.WriteString(p.Key + ": ")
		}
		b.WriteString(p.Text)
		lines[i] = b.String()
	}
	return strings.Join(lines, "\n")
}

// Load reads and checks a file. With optional set, a file that is not there
// gives the defaults. Every error but one of reading is an [*Error].
func Load(path string, optional bool) (*Config, error) {
	doc, err := os.ReadFile(path)
	if optional && errors.Is(err, fs.ErrNotExist) {
		c := Default()
		return &c, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &Error{File: path, Problems: []Problem{{Text: "there is no such file (create it, or name another with --config or PROJHOST_CONFIG)"}}}
	}
	if err != nil {
		return nil, &Error{File: path, Problems: []Problem{{Text: fmt.Sprintf("cannot be read: %v", errors.Unwrap(err))}}}
	}
	return Parse(path, string(doc), os.LookupEnv)
}

// Parse reads a document. lookup answers for the environment.
func Parse(file, doc string, lookup func(string) (string, bool)) (*Config, error) {
	var raw map[string]any
	if _, err := toml.Decode(doc, &raw); err != nil {
		p := Problem{Text: err.Error()}
		var pe toml.ParseError
		if errors.As(err, &pe) {
			p = Problem{Line: pe.Position.Line, Text: "not valid TOML: " + strings.TrimPrefix(pe.Message, "toml: ")}
			if p.Text == "not valid TOML: " {
				p.Text = "not valid TOML"
			}
		}
		return nil, &Error{File: file, Problems: []Problem{p}}
	}
	c := Default()
	c.File = file
	d := &decoder{lines: locate(doc), lookup: lookup, resolve: c.Resolve, seen: map[string]bool{}}
	d.table("", raw, reflect.ValueOf(&c).Elem())
	d.validate(&c)
	if len(d.problems) > 0 {
		slices.SortStableFunc(d.problems, func(a, b Problem) int { return a.Line - b.Line })
		return nil, &Error{File: file, Problems: d.problems}
	}
	return &c, nil
}

type decoder struct {
	lines    map[string]int
	lookup   func(string) (string, bool)
	resolve  func(string) string
	seen     map[string]bool // keys with a problem already
	problems []Problem
}

func (d *decoder) problem(key, format string, args ...any) {
	d.seen[key] = true
	line := d.lines[key]
	for k := key; line == 0 && k != ""; line = d.lines[k] {
		k = k[:max(strings.LastIndexAny(k, ".["), 0)]
	}
	d.problems = append(d.problems, Problem{Line: line, Key: key, Text: fmt.Sprintf(format, args...)})
}

// table fills a struct from a table, by the toml tags of its fields.
func (d *decoder) table(path string, raw map[string]any, into reflect.Value) {
	t := into.Type()
	fields := map[string]int{}
	for i := range t.NumField() {
		if name := t.Field(i).Tag.Get("toml"); name != "-" {
			fields[name] = i
		}
	}
	for _, key := range sortedKeys(raw) {
		full := join(path, key)
		i, ok := fields[key]
		if !ok {
			d.unknown(path, key, sortedKeys(fields))
			continue
		}
		d.value(full, raw[key], into.Field(i), t.Field(i))
	}
	for name, i := range fields {
		if t.Field(i).Tag.Get("secret") == "file" {
			d.secretFile(path, name, raw, into.Field(i))
		}
	}
}

func (d *decoder) unknown(path, key string, known []string) {
	where := "the top level"
	if path != "" {
		where = "[" + path + "]"
	}
	hint := ""
	if best := nearest(key, known); best != "" {
		hint = fmt.Sprintf(" (did you mean %q?)", best)
	}
	d.problem(join(path, key), "unknown key%s; the keys of %s are %s", hint, where, strings.Join(known, ", "))
}

var (
	sizeType     = reflect.TypeFor[Size]()
	durationType = reflect.TypeFor[time.Duration]()
)

func (d *decoder) value(key string, raw any, into reflect.Value, f reflect.StructField) {
	switch {
	case into.Type() == sizeType:
		if s, ok := d.str(key, raw, `a size such as "64MiB"`); ok {
			n, err := ParseSize(s)
			if err != nil {
				d.problem(key, "%q: %v", s, err)
				return
			}
			into.SetInt(int64(n))
			lo, _ := ParseSize(f.Tag.Get("min"))
			hi, _ := ParseSize(f.Tag.Get("max"))
			if n < lo || n > hi {
				d.problem(key, "%s is out of range: %s to %s", s, lo, hi)
			}
		}
	case into.Type() == durationType:
		if s, ok := d.str(key, raw, `a duration such as "250ms" or "5s"`); ok {
			n, err := time.ParseDuration(s)
			if err != nil {
				d.problem(key, `%q: a duration is numbers with a unit of ms, s, m or h, such as "250ms" or "1m30s"`, s)
				return
			}
			into.SetInt(int64(n))
			lo, _ := time.ParseDuration(f.Tag.Get("min"))
			hi, err := time.ParseDuration(f.Tag.Get("max"))
			if n < lo || err == nil && n > hi {
				d.problem(key, "%s is out of range: %s", s, between(shortDuration(lo), shortDuration(hi), err == nil))
			}
		}
	case into.Kind() == reflect.Int || into.Kind() == reflect.Int64:
		n, ok := raw.(int64)
		if !ok {
			d.problem(key, "is %s; it must be a whole number", describe(raw))
			return
		}
		lo, _ := strconv.ParseInt(f.Tag.Get("min"), 10, 64)
		hi, _ := strconv.ParseInt(f.Tag.Get("max"), 10, 64)
		if n < lo || n > hi {
			d.problem(key, "%d is out of range: %d to %d", n, lo, hi)
			return
		}
		into.SetInt(n)
	case into.Kind() == reflect.String:
		if s, ok := d.str(key, raw, "a string"); ok {
			into.SetString(s)
			d.allowed(key, s, f)
		}
	case into.Type() == reflect.TypeFor[[]string]():
		list, ok := raw.([]any)
		if !ok {
			d.problem(key, "is %s; it must be an array of strings", describe(raw))
			return
		}
		out := make([]string, 0, len(list))
		for i, el := range list {
			elKey := fmt.Sprintf("%s[%d]", key, i)
			if s, ok := d.str(elKey, el, "a string"); ok {
				out = append(out, s)
				d.allowed(elKey, s, f)
			}
		}
		into.Set(reflect.ValueOf(out))
	case into.Type() == reflect.TypeFor[map[string]any]():
		m, ok := raw.(map[string]any)
		if !ok {
			d.problem(key, "is %s; it must be a table", describe(raw))
			return
		}
		into.Set(reflect.ValueOf(d.free(key, m)))
	case into.Kind() == reflect.Struct:
		m, ok := raw.(map[string]any)
		if !ok {
			d.problem(key, "is %s; it must be a table: [%s]", describe(raw), key)
			return
		}
		d.table(key, m, into)
	case into.Kind() == reflect.Slice: // of structs
		d.tables(key, raw, into)
	case into.Kind() == reflect.Map: // name to struct
		m, ok := raw.(map[string]any)
		if !ok {
			d.problem(key, "is %s; it must be tables: [%s.NAME]", describe(raw), key)
			return
		}
		out := reflect.MakeMap(into.Type())
		for _, name := range sortedKeys(m) {
			el := reflect.New(into.Type().Elem()).Elem()
			d.value(join(key, name), m[name], el, reflect.StructField{})
			out.SetMapIndex(reflect.ValueOf(name), el)
		}
		into.Set(out)
	}
}

func (d *decoder) tables(key string, raw any, into reflect.Value) {
	var list []map[string]any
	switch r := raw.(type) {
	case []map[string]any:
		list = r
	case []any:
		for i, el := range r {
			m, ok := el.(map[string]any)
			if !ok {
				d.problem(fmt.Sprintf("%s[%d]", key, i), "is %s; it must be a table", describe(el))
				return
			}
			list = append(list, m)
		}
	default:
		d.problem(key, "is %s; it must be an array of tables: [[%s]]", describe(raw), key)
		return
	}
	out := reflect.MakeSlice(into.Type(), len(list), len(list))
	for i, m := range list {
		if into.Type().Elem() == reflect.TypeFor[Plugin]() {
			out.Index(i).Set(reflect.ValueOf(DefaultPlugin()))
		}
		d.table(fmt.Sprintf("%s[%d]", key, i), m, out.Index(i))
	}
	into.Set(out)
}

// free keeps a table of the user's own shape, with its strings expanded.
func (d *decoder) free(key string, m map[string]any) map[string]any {
	out := make(map[string]any, len(m))
	for k, v := range m {
		out[k] = d.freeValue(join(key, k), v)
	}
	return out
}

func (d *decoder) freeValue(key string, v any) any {
	switch v := v.(type) {
	case string:
		s, err := expand(v, d.lookup)
		if err != nil {
			d.problem(key, "%v", err)
		}
		return s
	case map[string]any:
		return d.free(key, v)
	case []map[string]any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = d.free(fmt.Sprintf("%s[%d]", key, i), v[i])
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = d.freeValue(fmt.Sprintf("%s[%d]", key, i), v[i])
		}
		return out
	}
	return v
}

func (d *decoder) str(key string, raw any, want string) (string, bool) {
	s, ok := raw.(string)
	if !ok {
		d.problem(key, "is %s; it must be %s", describe(raw), want)
		return "", false
	}
	s, err := expand(s, d.lookup)
	if err != nil {
		d.problem(key, "%v", err)
		return "", false
	}
	if strings.ContainsRune(s, 0) {
		d.problem(key, "contains a NUL character")
		return "", false
	}
	return s, true
}

func (d *decoder) allowed(key, s string, f reflect.StructField) {
	tag := f.Tag.Get("allowed")
	if tag == "" {
		return
	}
	list := strings.Split(tag, "|")
	if slices.Contains(list, s) {
		return
	}
	hint := ""
	if best := nearest(s, list); best != "" {
		hint = fmt.Sprintf(" (did you mean %q?)", best)
	}
	d.problem(key, "%q is not allowed%s; the values are %s", s, hint, strings.Join(list, ", "))
}

// secretFile reads a value from the file that NAME_file names.
func (d *decoder) secretFile(path, name string, raw map[string]any, into reflect.Value) {
	fileKey := join(path, name+"_file")
	if _, ok := raw[name+"_file"]; !ok || d.seen[fileKey] {
		return
	}
	if _, both := raw[name]; both {
		d.problem(fileKey, "%s and %s_file are both given: keep one", name, name)
		return
	}
	file, ok := d.str(fileKey, raw[name+"_file"], "a path")
	if !ok {
		return
	}
	b, err := os.ReadFile(d.resolve(file))
	if err != nil {
		d.problem(fileKey, "cannot be read: %v", err)
		return
	}
	into.SetString(strings.TrimRight(string(b), "\r\n"))
}

func describe(v any) string {
	switch v := v.(type) {
	case string:
		return "a string"
	case int64:
		return fmt.Sprintf("the number %d", v)
	case float64:
		return fmt.Sprintf("the number %v", v)
	case bool:
		return fmt.Sprintf("the boolean %v", v)
	case time.Time:
		return "a date or time"
	case map[string]any:
		return "a table"
	case []map[string]any:
		return "an array of tables"
	case []any:
		return "an array"
	}
	return fmt.Sprintf("a %T", v)
}

func between(lo, hi string, hasHi bool) string {
	if !hasHi {
		return "at least " + lo
	}
	return lo + " to " + hi
}

// shortDuration is d without zero units: "1h", not "1h0m0s".
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// nearest is the candidate a typing mistake away from s, or "".
func nearest(s string, candidates []string) string {
	best, least := "", 1+max(2, len(s)/3)
	for _, c := range candidates {
		if n := distance(s, c); n < least && n < len(s) {
			best, least = c, n
		}
	}
	return best
}

func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		prev := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := prev
			if a[i] != b[j] {
				cost++
			}
			prev = row[j+1]
			row[j+1] = min(cost, prev+1, row[j]+1)
		}
	}
	return row[len(b)]
}

func sortedKeys[V any](m map[string]V) []string {
	return slices.Sorted(maps.Keys(m))
}

// Abs is where a file is, for messages.
func Abs(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

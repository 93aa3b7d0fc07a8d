package projhost

import (
	"errors"
	"reflect"
	"strconv"
	"strings"
	"unsafe"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/sdk/go/json"
)

// storage is how a field lies in memory.
type storage uint8

const (
	storeString storage = iota
	storeInt            // signed, of the column's size
	storeUint
	storeFloat64
	storeFloat32
	storeBool
	storeBytes
	storeJSON
	storeDecimal
	storeTimestamp
	storeDate
	storeTime
	storeUUID
)

// quick tells which fields are read and compared without a call for each.
type quick uint8

const (
	quickNot  quick = iota
	quickWord       // 8 bytes as they are
	quickString
	quickBytes
)

// column is one field of a row's struct, found once by reflection. Events then
// go through offsets.
type column struct {
	store  storage
	size   uint8
	quick  quick
	tag    abi.Tag // of the values the host gives, for those that are quick
	null   bool    // the field is a Null
	copied bool    // the host copies it out of a json column
	offset uintptr // of the field in its struct
	valid  uintptr // of Null.Valid
	decl   *abi.Column
	start  string // the default of the tag, as it stands there

	detached []byte // see detach
}

// rowType is the struct of a table's rows.
type rowType struct {
	columns []column
	written int // columns the guest writes: all but the copies of From
}

type isNull interface{ isNull() }

var (
	nullType      = reflect.TypeFor[isNull]()
	decimalType   = reflect.TypeFor[Decimal]()
	timestampType = reflect.TypeFor[Timestamp]()
	dateType      = reflect.TypeFor[Date]()
	timeType      = reflect.TypeFor[TimeOfDay]()
	uuidType      = reflect.TypeFor[UUID]()
	jsonType      = reflect.TypeFor[JSON]()
)

// newRowType reads the fields and tags of a struct.
func newRowType(t reflect.Type) (*rowType, error) {
	if t.Kind() != reflect.Struct {
		return nil, errors.New(t.String() + " is no struct")
	}
	r := new(rowType)
	var problems []error
	for i := range t.NumField() {
		field := t.Field(i)
		tag := field.Tag.Get("ph")
		if tag == "-" || field.Name == "_" {
			continue
		}
		if !field.IsExported() {
			problems = append(problems, errors.New("field "+field.Name+": a column's field is exported (ph:\"-\" leaves it out)"))
			continue
		}
		c, err := newColumn(field, tag)
		if err != nil {
			problems = append(problems, errors.New("field "+field.Name+": "+err.Error()))
			continue
		}
		r.columns = append(r.columns, c)
		if !c.copied {
			r.written++
		}
	}
	if len(r.columns) > abi.MaxColumns {
		problems = append(problems, errors.New("more than "+strconv.Itoa(abi.MaxColumns)+" columns"))
	}
	return r, errors.Join(problems...)
}

func newColumn(field reflect.StructField, tag string) (column, error) {
	name, options, _ := strings.Cut(tag, ",")
	if name == "" {
		name = snakeCase(field.Name)
	}
	c := column{decl: &abi.Column{Name: name}, offset: field.Offset}
	t := field.Type
	if t.Implements(nullType) {
		c.null, c.valid = true, field.Offset+t.Field(1).Offset
		t = t.Field(0).Type
	}
	if err := c.setKind(t); err != nil {
		return c, err
	}
	for option := range strings.SplitSeq(options, ",") {
		if option != "" {
			if err := c.option(option); err != nil {
				return c, err
			}
		}
	}
	if c.decl.Kind == abi.ColumnDecimal && c.decl.Precision == 0 {
		return c, errors.New(`a decimal column says its digits: ph:"` + name + `,precision=19,scale=2"`)
	}
	c.declareNull()
	return c, nil
}

// declareNull makes the column what the field can hold: a plain field is never
// null, so that SQL and Go agree. Where Go's zero value is a natural start it is
// the default, so that patch and add can create a row.
func (c *column) declareNull() {
	if c.null || c.store == storeBytes || c.store == storeJSON {
		return
	}
	no := false
	c.decl.Null = &no
	if c.decl.Default != nil {
		return
	}
	switch c.store {
	case storeString:
		c.decl.Default = abi.RawJSON(`""`)
	case storeInt, storeUint, storeFloat32, storeFloat64:
		c.decl.Default = abi.RawJSON("0")
	case storeBool:
		c.decl.Default = abi.RawJSON("false")
	case storeDecimal:
		c.decl.Default = abi.RawJSON(`"0"`)
	}
}

func (c *column) setKind(t reflect.Type) error {
	set := func(s storage, kind string) error {
		c.store, c.decl.Kind, c.size = s, kind, uint8(t.Size())
		c.setQuick()
		return nil
	}
	switch t {
	case decimalType:
		return set(storeDecimal, abi.ColumnDecimal)
	case timestampType:
		return set(storeTimestamp, abi.ColumnTimestamp)
	case dateType:
		return set(storeDate, abi.ColumnDate)
	case timeType:
		return set(storeTime, abi.ColumnTime)
	case uuidType:
		return set(storeUUID, abi.ColumnUUID)
	case jsonType:
		return set(storeJSON, abi.ColumnJSON)
	}
	switch t.Kind() {
	case reflect.String:
		return set(storeString, abi.ColumnText)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return set(storeInt, abi.ColumnInt)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return set(storeUint, abi.ColumnInt)
	case reflect.Float64:
		return set(storeFloat64, abi.ColumnFloat)
	case reflect.Float32:
		return set(storeFloat32, abi.ColumnFloat)
	case reflect.Bool:
		return set(storeBool, abi.ColumnBool)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return set(storeBytes, abi.ColumnBytes)
		}
	}
	return errors.New(t.String() + " is no type of a column; use string, int64, float64, bool, []byte, " +
		"Decimal, Timestamp, Date, TimeOfDay, UUID, JSON or Null of one of them")
}

func (c *column) setQuick() {
	switch {
	case c.store == storeInt && c.size == 8:
		c.quick, c.tag = quickWord, abi.TagInt
	case c.store == storeTimestamp:
		c.quick, c.tag = quickWord, abi.TagTimestamp
	case c.store == storeString:
		c.quick, c.tag = quickString, abi.TagText
	case c.store == storeJSON:
		c.quick, c.tag = quickBytes, abi.TagJSON
	case c.store == storeBytes:
		c.quick, c.tag = quickBytes, abi.TagBytes
	}
}

// option reads one option of a tag.
func (c *column) option(option string) error {
	name, value, hasValue := strings.Cut(option, "=")
	flag := func(dst *bool) error {
		if hasValue {
			return errors.New("option " + name + " takes no value")
		}
		*dst = true
		return nil
	}
	number := func(dst *int) error {
		n, err := strconv.Atoi(value)
		if err != nil || n < 0 {
			return errors.New("option " + name + " needs a number: " + name + "=20")
		}
		*dst = n
		return nil
	}
	switch name {
	case "index":
		return flag(&c.decl.Index)
	case "unique":
		return flag(&c.decl.Unique)
	case "max":
		return number(&c.decl.Max)
	case "precision":
		return number(&c.decl.Precision)
	case "scale":
		return number(&c.decl.Scale)
	case "from":
		c.decl.From, c.copied = value, true
		return nil
	case "of":
		c.decl.Of = value
		return nil
	case "default":
		return c.setDefault(value)
	}
	return errors.New("unknown option " + strconv.Quote(option) +
		"; there are index, unique, max=, precision=, scale=, default=, from= and of=")
}

// setDefault checks the default of a tag and spells it in JSON.
func (c *column) setDefault(value string) error {
	c.start = value
	var err error
	switch c.store {
	case storeInt, storeUint:
		_, err = strconv.ParseInt(value, 10, 64)
	case storeFloat64, storeFloat32:
		_, err = strconv.ParseFloat(value, 64)
	case storeBool:
		if value != "true" && value != "false" {
			err = errors.New("say true or false")
		}
	case storeDecimal:
		_, err = ParseDecimal(value)
		value = `"` + value + `"`
	case storeString:
		value = string(json.AppendString(nil, value))
	default:
		err = errors.New("a column of kind " + c.decl.Kind + " takes no default in a tag")
	}
	if err != nil {
		return errors.New("default " + strconv.Quote(c.start) + ": " + err.Error())
	}
	c.decl.Default = abi.RawJSON(value)
	return nil
}

// begin sets the field of a new row to the default of its tag.
func (c *column) begin(row unsafe.Pointer) {
	if c.start == "" {
		return
	}
	var v abi.Value
	switch c.store {
	case storeInt, storeUint:
		n, _ := strconv.ParseInt(c.start, 10, 64)
		v = abi.Int(n)
	case storeFloat64, storeFloat32:
		f, _ := strconv.ParseFloat(c.start, 64)
		v = abi.Float(f)
	case storeBool:
		v = abi.Bool(c.start == "true")
	case storeDecimal:
		v = abi.Decimal(c.start)
	case storeString:
		v = abi.Text(c.start)
	}
	c.read(row, abi.AppendValue(nil, v))
}

// snakeCase turns LastResource into last_resource and HTTPStatus into http_status.
func snakeCase(name string) string {
	lower := func(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		c := name[i]
		if c >= 'A' && c <= 'Z' {
			if i > 0 && name[i-1] != '_' && (lower(name[i-1]) || i+1 < len(name) && lower(name[i+1])) {
				b.WriteByte('_')
			}
			c += 'a' - 'A'
		}
		b.WriteByte(c)
	}
	return b.String()
}

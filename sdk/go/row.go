package projhost

import (
	"encoding/binary"
	"errors"
	"math"
	"reflect"
	"strconv"
	"strings"
	"unsafe"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/sdk/go/json"
)

var le = binary.LittleEndian

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

// column is one field of a row's struct, found once by reflection. Events then
// go through offsets.
type column struct {
	decl   abi.Column
	store  storage
	size   uint8
	offset uintptr
	valid  uintptr // of Null.Valid
	null   bool    // the field is a Null
	start  string  // the default of the tag, as it stands there
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
		if c.decl.From == "" {
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
	c := column{decl: abi.Column{Name: name}, offset: field.Offset}
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
		c.decl.From = value
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

// read sets the field from one encoded value at the start of b and returns the
// value's length. The bytes come from the host, which promises their form; a
// value of another kind is a mistake between the two and panics.
func (c *column) read(row unsafe.Pointer, b []byte) int {
	p := unsafe.Add(row, c.offset)
	tag := abi.Tag(b[0])
	if c.null {
		*(*bool)(unsafe.Add(row, c.valid)) = tag != abi.TagNull
	}
	switch tag {
	case abi.TagNull:
		c.clear(p)
		return 1
	case abi.TagFalse, abi.TagTrue:
		if c.store == storeBool {
			*(*bool)(p) = tag == abi.TagTrue
			return 1
		}
	case abi.TagInt:
		if c.store == storeInt || c.store == storeUint {
			c.setInt(p, int64(le.Uint64(b[1:])))
			return 9
		}
	case abi.TagFloat:
		f := math.Float64frombits(le.Uint64(b[1:]))
		switch c.store {
		case storeFloat64:
			*(*float64)(p) = f
			return 9
		case storeFloat32:
			*(*float32)(p) = float32(f)
			return 9
		}
	case abi.TagTimestamp:
		if c.store == storeTimestamp {
			*(*Timestamp)(p) = Timestamp(le.Uint64(b[1:]))
			return 9
		}
	case abi.TagTime:
		if c.store == storeTime {
			*(*TimeOfDay)(p) = TimeOfDay(le.Uint64(b[1:]))
			return 9
		}
	case abi.TagDate:
		if c.store == storeDate {
			*(*Date)(p) = Date(le.Uint32(b[1:]))
			return 5
		}
	case abi.TagUUID:
		if c.store == storeUUID {
			*(*UUID)(p) = UUID(b[1:17])
			return 17
		}
	case abi.TagText, abi.TagBytes, abi.TagDecimal, abi.TagJSON:
		end := 5 + int(le.Uint32(b[1:]))
		if c.setBytes(p, tag, b[5:end:end]) {
			return end
		}
	}
	panic("column " + c.decl.Name + " is of kind " + c.decl.Kind + ", the host gave a value with tag " + strconv.Itoa(int(tag)))
}

// setBytes sets a field from a view of the host's bytes.
func (c *column) setBytes(p unsafe.Pointer, tag abi.Tag, b []byte) bool {
	switch {
	case tag == abi.TagText && c.store == storeString:
		*(*string)(p) = unsafe.String(unsafe.SliceData(b), len(b))
	case tag == abi.TagBytes && c.store == storeBytes, tag == abi.TagJSON && c.store == storeJSON:
		*(*[]byte)(p) = b
	case tag == abi.TagDecimal && c.store == storeDecimal:
		d, err := ParseDecimal(unsafe.String(unsafe.SliceData(b), len(b)))
		if err != nil {
			return false
		}
		*(*Decimal)(p) = d
	default:
		return false
	}
	return true
}

// clear sets the field's value to Go's zero.
func (c *column) clear(p unsafe.Pointer) {
	switch c.store {
	case storeString:
		*(*string)(p) = ""
	case storeBytes, storeJSON:
		*(*[]byte)(p) = nil
	case storeDecimal:
		*(*Decimal)(p) = Decimal{}
	case storeUUID:
		*(*UUID)(p) = UUID{}
	default:
		clear(unsafe.Slice((*byte)(p), c.size))
	}
}

func (c *column) setInt(p unsafe.Pointer, n int64) {
	fits := true
	switch {
	case c.size == 8:
		*(*int64)(p) = n
	case c.store == storeUint && c.size == 4:
		*(*uint32)(p) = uint32(n)
		fits = n == int64(uint32(n))
	case c.store == storeUint && c.size == 2:
		*(*uint16)(p) = uint16(n)
		fits = n == int64(uint16(n))
	case c.store == storeUint:
		*(*uint8)(p) = uint8(n)
		fits = n == int64(uint8(n))
	case c.size == 4:
		*(*int32)(p) = int32(n)
		fits = n == int64(int32(n))
	case c.size == 2:
		*(*int16)(p) = int16(n)
		fits = n == int64(int16(n))
	default:
		*(*int8)(p) = int8(n)
		fits = n == int64(int8(n))
	}
	if !fits {
		panic("column " + c.decl.Name + " holds " + strconv.FormatInt(n, 10) + ", which does not fit its field")
	}
}

func (c *column) int(p unsafe.Pointer) int64 {
	switch {
	case c.size == 8:
		return *(*int64)(p)
	case c.store == storeUint && c.size == 4:
		return int64(*(*uint32)(p))
	case c.store == storeUint && c.size == 2:
		return int64(*(*uint16)(p))
	case c.store == storeUint:
		return int64(*(*uint8)(p))
	case c.size == 4:
		return int64(*(*int32)(p))
	case c.size == 2:
		return int64(*(*int16)(p))
	}
	return int64(*(*int8)(p))
}

// append appends the field's encoded value in its canonical form, so that an
// unchanged field encodes to the bytes it was read from.
func (c *column) append(dst []byte, row unsafe.Pointer) []byte {
	p := unsafe.Add(row, c.offset)
	if c.null && !*(*bool)(unsafe.Add(row, c.valid)) {
		return append(dst, byte(abi.TagNull))
	}
	switch c.store {
	case storeString:
		return appendStr(append(dst, byte(abi.TagText)), *(*string)(p))
	case storeInt, storeUint:
		return append64(dst, abi.TagInt, uint64(c.int(p)))
	case storeTimestamp:
		return append64(dst, abi.TagTimestamp, *(*uint64)(p))
	case storeDecimal:
		return c.appendDecimal(dst, *(*Decimal)(p))
	case storeJSON, storeBytes:
		b := *(*[]byte)(p)
		if b == nil {
			return append(dst, byte(abi.TagNull))
		}
		tag := abi.TagBytes
		if c.store == storeJSON {
			tag = abi.TagJSON
		}
		dst = le.AppendUint32(append(dst, byte(tag)), uint32(len(b)))
		return append(dst, b...)
	case storeBool:
		if *(*bool)(p) {
			return append(dst, byte(abi.TagTrue))
		}
		return append(dst, byte(abi.TagFalse))
	case storeFloat64:
		return c.appendFloat(dst, *(*float64)(p))
	case storeFloat32:
		return c.appendFloat(dst, float64(*(*float32)(p)))
	case storeDate:
		return le.AppendUint32(append(dst, byte(abi.TagDate)), *(*uint32)(p))
	case storeTime:
		return append64(dst, abi.TagTime, *(*uint64)(p))
	case storeUUID:
		return append(append(dst, byte(abi.TagUUID)), (*UUID)(p)[:]...)
	}
	panic("unreachable")
}

// appendDecimal writes all the digits of the column's scale. More digits than
// the column has would be rounded by somebody, so they fail the message.
func (c *column) appendDecimal(dst []byte, d Decimal) []byte {
	scaled, ok := d.Rescale(c.decl.Scale)
	if !ok {
		panic(abort{abi.StatusReject, "column " + c.decl.Name + ": " + d.String() +
			" has more than " + strconv.Itoa(c.decl.Scale) + " digits behind the point"})
	}
	dst = append(dst, byte(abi.TagDecimal), 0, 0, 0, 0)
	from := len(dst)
	dst = scaled.AppendText(dst)
	le.PutUint32(dst[from-4:], uint32(len(dst)-from))
	return dst
}

func (c *column) appendFloat(dst []byte, f float64) []byte {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		panic(abort{abi.StatusReject, "column " + c.decl.Name + ": a float column holds neither NaN nor infinity"})
	}
	return append64(dst, abi.TagFloat, math.Float64bits(f+0)) // +0 turns -0 into 0
}

func append64(dst []byte, tag abi.Tag, bits uint64) []byte {
	return le.AppendUint64(append(dst, byte(tag)), bits)
}

func appendStr(dst []byte, s string) []byte {
	return append(le.AppendUint32(dst, uint32(len(s))), s...)
}

// readRow sets all fields of row from the host's bytes, which the fields are
// views of, and notes where each column's value lies in them.
func (r *rowType) readRow(row unsafe.Pointer, b []byte, spans []span) {
	if int(le.Uint16(b)) != len(r.columns) {
		panic("the host gave a row of " + strconv.Itoa(int(le.Uint16(b))) + " columns, " +
			strconv.Itoa(len(r.columns)) + " are declared")
	}
	at := 2
	for i := range r.columns {
		n := r.columns[i].read(row, b[at:])
		if spans != nil {
			spans[i] = span{int32(at), int32(at + n)}
		}
		at += n
	}
}

type span struct{ from, to int32 }

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

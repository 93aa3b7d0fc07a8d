package projhost

import (
	"encoding/binary"
	"math"
	"strconv"
	"unsafe"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/sdk/go/internal/fast"
)

var le = binary.LittleEndian

// readRow sets all fields of row from the host's bytes, which the fields are
// views of. The host promises their form; what is of another kind is a mistake
// between the two and panics.
func (r *rowType) readRow(row unsafe.Pointer, b []byte) {
	if len(b) < 2 || int(le.Uint16(b)) != len(r.columns) {
		panic("the host gave a row of another number of columns than are declared")
	}
	base := unsafe.Pointer(unsafe.SliceData(b))
	at := 2
	for i := range r.columns {
		c := &r.columns[i]
		if at >= len(b) {
			panic(shortRow)
		}
		if abi.Tag(b[at]) != c.tag || c.quick == quickNot {
			at += c.read(row, b[at:])
			continue
		}
		if c.null {
			*(*bool)(unsafe.Add(row, c.valid)) = true
		}
		p := unsafe.Add(row, c.offset)
		if c.quick == quickWord {
			if at += 9; at > len(b) {
				panic(shortRow)
			}
			*(*uint64)(p) = fast.Load64(unsafe.Add(base, at-8))
			continue
		}
		from := at + 5
		if from > len(b) {
			panic(shortRow)
		}
		n := int(fast.Load32(unsafe.Add(base, at+1)))
		v := b[from : from+n : from+n]
		at = from + n
		if c.quick == quickString {
			*(*string)(p) = unsafe.String(unsafe.SliceData(v), n)
		} else {
			*(*[]byte)(p) = v
		}
	}
}

const shortRow = "the host gave a row that ends too early"

// read sets the field from the value at the start of b and returns its length.
// The kinds that most columns are of come first.
func (c *column) read(row unsafe.Pointer, b []byte) int {
	p := unsafe.Add(row, c.offset)
	tag := abi.Tag(b[0])
	if c.null {
		valid := tag != abi.TagNull
		*(*bool)(unsafe.Add(row, c.valid)) = valid
		if !valid {
			c.clear(p)
			return 1
		}
	}
	switch c.store {
	case storeString:
		if tag == abi.TagText {
			v := varying(b)
			*(*string)(p) = unsafe.String(unsafe.SliceData(v), len(v))
			return 5 + len(v)
		}
	case storeInt, storeUint:
		if tag == abi.TagInt {
			c.setInt(p, int64(le.Uint64(b[1:])))
			return 9
		}
	case storeTimestamp:
		if tag == abi.TagTimestamp {
			*(*uint64)(p) = le.Uint64(b[1:])
			return 9
		}
	case storeDecimal:
		if tag == abi.TagDecimal {
			v := varying(b)
			d, err := ParseDecimal(unsafe.String(unsafe.SliceData(v), len(v)))
			if err == nil {
				*(*Decimal)(p) = d
				return 5 + len(v)
			}
		}
	case storeJSON, storeBytes:
		if tag == abi.TagNull {
			*(*[]byte)(p) = nil
			return 1
		}
		if (tag == abi.TagJSON) == (c.store == storeJSON) && (tag == abi.TagBytes) == (c.store == storeBytes) {
			v := varying(b)
			*(*[]byte)(p) = v
			return 5 + len(v)
		}
	default:
		if n := c.readOther(p, tag, b); n > 0 {
			return n
		}
	}
	if tag == abi.TagNull {
		c.clear(p) // the table of an older version of the plugin
		return 1
	}
	panic("column " + c.decl.Name + " is of kind " + c.decl.Kind + ", the host gave a value with tag " + strconv.Itoa(int(tag)))
}

// detach gives the row bytes and JSON of its own, so that what the row was
// before does not change with it where a handler changes them in place.
func (r *rowType) detach(row unsafe.Pointer) {
	for i := range r.columns {
		c := &r.columns[i]
		if c.store != storeJSON && c.store != storeBytes {
			continue
		}
		if b := (*[]byte)(unsafe.Add(row, c.offset)); len(*b) > 0 {
			c.detached = append(c.detached[:0], *b...)
			*b = c.detached[:len(*b):len(*b)]
		}
	}
}

// varying is a view of the bytes of a value that has a length.
func varying(b []byte) []byte {
	n := int(le.Uint32(b[1:]))
	return b[5 : 5+n : 5+n]
}

// readOther reads the rarer kinds, 0 where the tag is of another.
func (c *column) readOther(p unsafe.Pointer, tag abi.Tag, b []byte) int {
	switch {
	case c.store == storeBool && (tag == abi.TagTrue || tag == abi.TagFalse):
		*(*bool)(p) = tag == abi.TagTrue
		return 1
	case c.store == storeFloat64 && tag == abi.TagFloat:
		*(*float64)(p) = math.Float64frombits(le.Uint64(b[1:]))
		return 9
	case c.store == storeFloat32 && tag == abi.TagFloat:
		*(*float32)(p) = float32(math.Float64frombits(le.Uint64(b[1:])))
		return 9
	case c.store == storeTime && tag == abi.TagTime:
		*(*TimeOfDay)(p) = TimeOfDay(le.Uint64(b[1:]))
		return 9
	case c.store == storeDate && tag == abi.TagDate:
		*(*Date)(p) = Date(le.Uint32(b[1:]))
		return 5
	case c.store == storeUUID && tag == abi.TagUUID:
		*(*UUID)(p) = UUID(b[1:17])
		return 17
	}
	return 0
}

// untouched tells that a field is surely what it was before: most are, and an
// unchanged string is the same view, which is seen without a look at its bytes.
func (c *column) untouched(row, before unsafe.Pointer) bool {
	if c.null && *(*bool)(unsafe.Add(row, c.valid)) != *(*bool)(unsafe.Add(before, c.valid)) {
		return false
	}
	p, q := unsafe.Add(row, c.offset), unsafe.Add(before, c.offset)
	switch c.quick {
	case quickWord:
		return *(*uint64)(p) == *(*uint64)(q)
	case quickNot:
		return false
	}
	// A string's head is the first two words of a slice's.
	is, was := (*[2]uintptr)(p), (*[2]uintptr)(q)
	return is[0] == was[0] && is[1] == was[1]
}

// same tells whether the field has the value it had before, so that nothing
// needs to be written.
func (c *column) same(row, before unsafe.Pointer) bool {
	if c.null {
		is, was := *(*bool)(unsafe.Add(row, c.valid)), *(*bool)(unsafe.Add(before, c.valid))
		if !is || !was {
			return is == was
		}
	}
	p, q := unsafe.Add(row, c.offset), unsafe.Add(before, c.offset)
	switch c.store {
	case storeString:
		return fast.Equal(*(*string)(p), *(*string)(q))
	case storeJSON, storeBytes:
		is, was := *(*[]byte)(p), *(*[]byte)(q)
		return (is == nil) == (was == nil) && fast.Equal(asString(is), asString(was))
	case storeDecimal:
		is, was := *(*Decimal)(p), *(*Decimal)(q)
		if is.scale == was.scale {
			return is == was
		}
		return is.Cmp(was) == 0
	case storeUUID:
		return *(*UUID)(p) == *(*UUID)(q)
	case storeFloat64:
		return *(*float64)(p) == *(*float64)(q) // NaN differs, and is refused on its way out
	case storeFloat32:
		return *(*float32)(p) == *(*float32)(q)
	}
	switch c.size {
	case 8:
		return *(*uint64)(p) == *(*uint64)(q)
	case 4:
		return *(*uint32)(p) == *(*uint32)(q)
	case 2:
		return *(*uint16)(p) == *(*uint16)(q)
	}
	return *(*uint8)(p) == *(*uint8)(q)
}

func asString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

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

// appendColumn appends one column of an op: its index and the field's value.
// For the usual kinds room is made once.
func (r *rowType) appendColumn(dst []byte, i int, row unsafe.Pointer) []byte {
	c := &r.columns[i]
	p := unsafe.Add(row, c.offset)
	if c.quick == quickNot || c.null && !*(*bool)(unsafe.Add(row, c.valid)) {
		return c.append(append(dst, byte(i), byte(i>>8)), row)
	}
	n, size := len(dst), 11
	var text string
	switch c.quick {
	case quickString:
		text = *(*string)(p)
		size = 7 + len(text)
	case quickBytes:
		v := *(*[]byte)(p)
		if v == nil {
			return append(dst, byte(i), byte(i>>8), byte(abi.TagNull))
		}
		text = asString(v)
		size = 7 + len(text)
	}
	if cap(dst)-n < size {
		dst = append(dst, make([]byte, size)...)
	}
	dst = dst[:n+size]
	b := dst[n : n+size]
	b[0], b[1], b[2] = byte(i), byte(i>>8), byte(c.tag)
	if c.quick == quickWord {
		le.PutUint64(b[3:], *(*uint64)(p))
		return dst
	}
	le.PutUint32(b[3:], uint32(len(text)))
	copy(b[7:], text)
	return dst
}

// append appends the field's encoded value in its canonical form.
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
		return appendStr(append(dst, byte(tag)), asString(b))
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
	if scale := c.decl.Scale; int(d.scale) != scale {
		scaled, ok := d.Rescale(scale)
		if !ok {
			panic(abort{abi.StatusReject, "column " + c.decl.Name + ": " + d.String() +
				" has more than " + strconv.Itoa(scale) + " digits behind the point"})
		}
		d = scaled
	}
	dst = append(dst, byte(abi.TagDecimal), 0, 0, 0, 0)
	from := len(dst)
	dst = d.AppendText(dst)
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

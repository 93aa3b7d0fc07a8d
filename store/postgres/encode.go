package postgres

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/readmodel"
)

// Types by their fixed numbers, and the types of their arrays.
const (
	oidBool       = 16
	oidBytea      = 17
	oidName       = 19
	oidInt8       = 20
	oidInt2       = 21
	oidInt4       = 23
	oidText       = 25
	oidOid        = 26
	oidJSON       = 114
	oidFloat4     = 700
	oidFloat8     = 701
	oidVarchar    = 1043
	oidDate       = 1082
	oidTime       = 1083
	oidTimestamp  = 1114
	oidTimestamp_ = 1184 // with time zone
	oidNumeric    = 1700
	oidUUID       = 2950
)

var arrayOf = map[uint32]uint32{
	oidBool: 1000, oidBytea: 1001, oidInt8: 1016, oidInt4: 1007, oidText: 1009, oidJSON: 199, oidFloat8: 1022,
	oidDate: 1182, oidTime: 1183, oidTimestamp: 1115, oidNumeric: 1231, oidUUID: 2951,
}

// The server counts days and microseconds from 2000-01-01.
const (
	epochDays   = 10957
	epochMicros = epochDays * 86_400_000_000
)

func (p *params) add(oid uint32, value []byte) {
	p.values = append(p.values, value)
	p.oids = append(p.oids, oid)
	p.formats = append(p.formats, 1)
}

func (p *params) int8(v int64) { p.add(oidInt8, binary.BigEndian.AppendUint64(nil, uint64(v))) }
func (p *params) int4(v int) {
	p.add(oidInt4, binary.BigEndian.AppendUint32(nil, uint32(int32(v))))
}
func (p *params) text(v string)   { p.add(oidText, []byte(v)) }
func (p *params) null(oid uint32) { p.add(oid, nil) }
func (p *params) bytes(v []byte) {
	if v == nil {
		v = []byte{}
	}
	p.add(oidBytea, v)
}

// array adds a finished array.
func (p *params) array(a *array) { p.add(arrayOf[a.oid], a.finish()) }

// array is a one-dimensional array parameter in the making, in binary.
type array struct {
	oid  uint32
	n    int
	null bool
	buf  []byte
}

const arrayHeader = 20

func newArray(oid uint32, n, size int) *array {
	return &array{oid: oid, buf: make([]byte, arrayHeader, arrayHeader+n*(4+size))}
}

func (a *array) finish() []byte {
	if a.n == 0 {
		b := make([]byte, 12) // no dimension
		binary.BigEndian.PutUint32(b[8:], a.oid)
		return b
	}
	h := a.buf[:arrayHeader]
	binary.BigEndian.PutUint32(h, 1)
	if a.null {
		binary.BigEndian.PutUint32(h[4:], 1)
	}
	binary.BigEndian.PutUint32(h[8:], a.oid)
	binary.BigEndian.PutUint32(h[12:], uint32(a.n))
	binary.BigEndian.PutUint32(h[16:], 1)
	return a.buf
}

func (a *array) addNull() {
	a.n++
	a.null = true
	a.buf = binary.BigEndian.AppendUint32(a.buf, math.MaxUint32)
}

func (a *array) addInt8(v int64) {
	a.n++
	a.buf = binary.BigEndian.AppendUint32(a.buf, 8)
	a.buf = binary.BigEndian.AppendUint64(a.buf, uint64(v))
}

func (a *array) addInt4(v int) {
	a.n++
	a.buf = binary.BigEndian.AppendUint32(a.buf, 4)
	a.buf = binary.BigEndian.AppendUint32(a.buf, uint32(int32(v)))
}

func (a *array) addText(v string) {
	a.n++
	a.buf = binary.BigEndian.AppendUint32(a.buf, uint32(len(v)))
	a.buf = append(a.buf, v...)
}

func (a *array) addBytes(v []byte) {
	a.n++
	a.buf = binary.BigEndian.AppendUint32(a.buf, uint32(len(v)))
	a.buf = append(a.buf, v...)
}

// elementOf is the type in which values of a kind are sent.
func elementOf(k readmodel.Kind) uint32 {
	switch k {
	case readmodel.Text:
		return oidText
	case readmodel.Int:
		return oidInt8
	case readmodel.Decimal:
		return oidNumeric
	case readmodel.Float:
		return oidFloat8
	case readmodel.Bool:
		return oidBool
	case readmodel.Date:
		return oidDate
	case readmodel.Time:
		return oidTime
	case readmodel.Timestamp:
		return oidTimestamp
	case readmodel.UUID:
		return oidUUID
	case readmodel.Bytes:
		return oidBytea
	}
	return oidJSON
}

// addValue adds a canonical value of a declared column.
func (a *array) addValue(v *abi.Value) {
	switch v.Tag {
	case abi.TagInt:
		a.addInt8(v.I)
	case abi.TagText, abi.TagJSON, abi.TagBytes, abi.TagUUID:
		a.addBytes(v.B)
	case abi.TagFalse, abi.TagTrue:
		a.n++
		a.buf = append(a.buf, 0, 0, 0, 1, byte(v.Tag-abi.TagFalse))
	case abi.TagFloat:
		a.addInt8(int64(math.Float64bits(v.F)))
	case abi.TagDate:
		a.addInt4(int(v.I - epochDays))
	case abi.TagTime:
		a.addInt8(v.I)
	case abi.TagTimestamp:
		a.addInt8(v.I - epochMicros)
	case abi.TagDecimal:
		a.n++
		at := len(a.buf)
		a.buf = appendNumeric(append(a.buf, 0, 0, 0, 0), v.B)
		binary.BigEndian.PutUint32(a.buf[at:], uint32(len(a.buf)-at-4))
	default:
		a.addNull()
	}
}

// appendNumeric appends the binary form of a decimal of the form -12.34: its
// digits in groups of four, the point between two groups.
func appendNumeric(dst []byte, text []byte) []byte {
	sign := uint16(0)
	if text[0] == '-' {
		sign, text = 0x4000, text[1:]
	}
	whole, fraction := text, text[len(text):]
	for i, c := range text {
		if c == '.' {
			whole, fraction = text[:i], text[i+1:]
			break
		}
	}
	if len(whole) == 1 && whole[0] == '0' {
		whole = nil
	}
	at := len(dst)
	dst = append(dst, 0, 0, 0, 0, byte(sign>>8), byte(sign), byte(len(fraction)>>8), byte(len(fraction)))
	weight := (len(whole)+3)/4 - 1
	digits, started := 0, false
	group := func(g uint16) {
		if !started && g == 0 {
			weight--
			return
		}
		started = true
		dst = append(dst, byte(g>>8), byte(g))
		digits++
	}
	for i := 0; i < len(whole); {
		n := (len(whole)-i-1)%4 + 1
		g := uint16(0)
		for _, c := range whole[i : i+n] {
			g = g*10 + uint16(c-'0')
		}
		group(g)
		i += n
	}
	for i := 0; i < len(fraction); i += 4 {
		g := uint16(0)
		for j := i; j < i+4; j++ {
			g *= 10
			if j < len(fraction) {
				g += uint16(fraction[j] - '0')
			}
		}
		group(g)
	}
	for digits > 0 && dst[len(dst)-1] == 0 && dst[len(dst)-2] == 0 {
		dst = dst[:len(dst)-2]
		digits--
	}
	if digits == 0 {
		weight = 0
		dst[at+4], dst[at+5] = 0, 0
	}
	binary.BigEndian.PutUint16(dst[at:], uint16(digits))
	binary.BigEndian.PutUint16(dst[at+2:], uint16(int16(weight)))
	return dst
}

// addAny adds an argument as the common roles make them. Its type is left to
// the server, so all but bytes go as text.
func (p *params) addAny(a any) error {
	var value []byte
	format := int16(0)
	switch v := a.(type) {
	case nil:
	case string:
		value = []byte(v)
	case []byte:
		if value, format = v, 1; v == nil {
			value = []byte{}
		}
	case bool:
		value = []byte{'f'}
		if v {
			value[0] = 't'
		}
	case int64:
		value = appendInt(v)
	case int:
		value = appendInt(int64(v))
	case int32:
		value = appendInt(int64(v))
	case float64:
		value = appendFloat(v)
	default:
		return fmt.Errorf("an argument of type %T cannot be sent", a)
	}
	p.values = append(p.values, value)
	p.oids = append(p.oids, 0)
	p.formats = append(p.formats, format)
	return nil
}

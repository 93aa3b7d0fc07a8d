package postgres

import (
	"database/sql"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/projhost/projhost/store"
)

func appendInt(v int64) []byte     { return strconv.AppendInt(nil, v, 10) }
func appendFloat(v float64) []byte { return strconv.AppendFloat(nil, v, 'g', -1, 64) }

// int8Of reads a column of type bigint that is not null.
func int8Of(b []byte) int64 { return int64(binary.BigEndian.Uint64(b)) }

func int4Of(b []byte) int32 { return int32(binary.BigEndian.Uint32(b)) }

// decode turns a column in binary into what package readmodel scans: int64,
// float64, bool, string, []byte, time.Time, nil. Strings and bytes are copies.
func decode(oid uint32, b []byte) (any, error) {
	if b == nil {
		return nil, nil
	}
	switch oid {
	case oidInt8:
		return int8Of(b), nil
	case oidInt4:
		return int64(int4Of(b)), nil
	case oidInt2:
		return int64(int16(binary.BigEndian.Uint16(b))), nil
	case oidOid:
		return int64(binary.BigEndian.Uint32(b)), nil
	case oidBool:
		return b[0] != 0, nil
	case oidFloat8:
		return math.Float64frombits(binary.BigEndian.Uint64(b)), nil
	case oidFloat4:
		return float64(math.Float32frombits(binary.BigEndian.Uint32(b))), nil
	case oidBytea:
		return append(make([]byte, 0, len(b)), b...), nil
	case oidNumeric:
		s, err := numericText(b)
		return s, err
	case oidDate:
		return time.Unix((int64(int4Of(b))+epochDays)*86_400, 0).UTC(), nil
	case oidTime:
		return time.UnixMicro(int8Of(b)).UTC(), nil
	case oidTimestamp, oidTimestamp_:
		return time.UnixMicro(int8Of(b) + epochMicros).UTC(), nil
	case oidUUID:
		if len(b) == 16 {
			return store.ID(b).String(), nil
		}
	}
	return string(b), nil
}

// numericText reads a numeric in binary.
func numericText(b []byte) (string, error) {
	if len(b) < 8 {
		return "", fmt.Errorf("a numeric of %d bytes", len(b))
	}
	n, weight := int(binary.BigEndian.Uint16(b)), int(int16(binary.BigEndian.Uint16(b[2:])))
	sign, scale := binary.BigEndian.Uint16(b[4:]), int(binary.BigEndian.Uint16(b[6:]))
	if len(b) != 8+2*n {
		return "", fmt.Errorf("a numeric of %d bytes with %d digits", len(b), n)
	}
	out := make([]byte, 0, 48)
	switch sign {
	case 0:
	case 0x4000:
		out = append(out, '-')
	default:
		return "NaN", nil // or an infinity: no decimal
	}
	group := func(i int) int {
		if i < 0 || i >= n {
			return 0
		}
		return int(binary.BigEndian.Uint16(b[8+2*i:]))
	}
	if weight < 0 {
		out = append(out, '0')
	}
	for i := 0; i <= weight; i++ {
		if i == 0 {
			out = strconv.AppendInt(out, int64(group(i)), 10)
			continue
		}
		out = appendGroup(out, group(i))
	}
	if scale > 0 {
		out = append(out, '.')
		start := len(out)
		for i := weight + 1; len(out)-start < scale; i++ {
			out = appendGroup(out, group(i))
		}
		out = out[:start+scale]
	}
	return string(out), nil
}

func appendGroup(dst []byte, g int) []byte {
	return append(dst, byte('0'+g/1000), byte('0'+g/100%10), byte('0'+g/10%10), byte('0'+g%10))
}

// assign stores a decoded value where database/sql would.
func assign(dest, v any) error {
	switch d := dest.(type) {
	case sql.Scanner:
		return d.Scan(v)
	case *string:
		switch v := v.(type) {
		case string:
			*d = v
			return nil
		case []byte:
			*d = string(v)
			return nil
		}
	case *[]byte:
		switch v := v.(type) {
		case nil:
			*d = nil
			return nil
		case string:
			*d = []byte(v)
			return nil
		case []byte:
			*d = v
			return nil
		}
	case *int64:
		switch v := v.(type) {
		case int64:
			*d = v
			return nil
		case string: // a sum of bigint is numeric
			n, err := strconv.ParseInt(v, 10, 64)
			*d = n
			return err
		}
	case *int:
		if n, ok := v.(int64); ok {
			*d = int(n)
			return nil
		}
	case *int32:
		if n, ok := v.(int64); ok {
			*d = int32(n)
			return nil
		}
	case *bool:
		switch v := v.(type) {
		case bool:
			*d = v
			return nil
		case int64:
			*d = v != 0
			return nil
		}
	case *any:
		*d = v
		return nil
	}
	return fmt.Errorf("a column of %T cannot be read as %T", v, dest)
}

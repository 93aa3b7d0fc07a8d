package projhost

import (
	"math"
	"reflect"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/readmodel"
)

// every has a field of each kind and size.
type every struct {
	Text      string `ph:"text,max=20,index"`
	Int       int
	Int8      int8
	Int16     int16
	Int32     int32
	Int64     int64
	Uint8     uint8
	Uint16    uint16
	Uint32    uint32
	Float64   float64
	Float32   float32
	Bool      bool
	Bytes     []byte
	JSON      JSON    `ph:"doc"`
	Decimal   Decimal `ph:"amount,precision=38,scale=4"`
	Timestamp Timestamp
	Date      Date
	TimeOfDay TimeOfDay
	UUID      UUID

	NullText      Null[string]
	NullInt       Null[int64]
	NullInt8      Null[int8]
	NullDecimal   Null[Decimal] `ph:",precision=10,scale=2"`
	NullTimestamp Null[Timestamp]
	NullBool      Null[bool]
	NullUUID      Null[UUID]

	note string `ph:"-"`
}

func fullRow() every {
	return every{
		Text: "ä text", Int: math.MinInt64, Int8: -128, Int16: -32768, Int32: math.MinInt32, Int64: math.MaxInt64,
		Uint8: 255, Uint16: 65535, Uint32: math.MaxUint32, Float64: 1.5e300, Float32: -0.25, Bool: true,
		Bytes: []byte{0, 1, 255}, JSON: JSON(`{"a": [1]}`), Decimal: MustDecimal("-12345678901234567890.5"),
		Timestamp: 1_300_000_000_000_001, Date: NewDate(2024, 2, 29), TimeOfDay: 86_399_999_999, UUID: UUID{1, 2, 15: 16},
		NullText: Some(""), NullInt: Some(int64(0)), NullInt8: Some(int8(-1)), NullDecimal: Some(MustDecimal("0.00")),
		NullTimestamp: Some(Timestamp(0)), NullBool: Some(false), NullUUID: Some(UUID{}),
	}
}

// What a handler writes, the host brings into its canonical form and gives back
// at the next message: nothing may differ then, or a row would be written that
// has not changed.
func TestRowsComeBackFromTheHostUnchanged(t *testing.T) {
	plugin := New("test", "1")
	p := NewProjection[every](plugin, "every")
	p.OnAny(func(*Ctx, *Message, *every) error { return nil })
	decl := plugin.manifest().Consumers[0]
	tables, err := readmodel.NewTables(decl.Tables)
	require.NoError(t, err)

	empty := every{Timestamp: 1_300_000_000_000_000} // the zero time is out of no engine's range, 1970
	for _, row := range []every{fullRow(), empty} {
		c := &plugin.ctx
		c.reset()
		*(*every)(p.p.row) = row
		c.store(p.p)
		le.PutUint32(c.ops, c.count)
		r := abi.ReadOps(c.ops, decl.Shape)
		var op abi.Op
		more, err := r.Next(&op)
		require.NoError(t, err)
		require.True(t, more)
		stored, err := tables[0].Upsert(op.Columns)
		require.NoError(t, err)

		c.reset()
		c.exists = true
		*(*every)(p.p.row) = every{Text: "old", NullText: Some("old"), Bytes: []byte("old")}
		p.p.own.readRow(p.p.row, stored)
		p.p.remember()
		got := *(*every)(p.p.row)
		require.Zero(t, got.Decimal.Cmp(row.Decimal))
		got.Decimal, row.Decimal = Decimal{}, Decimal{}
		require.Equal(t, row, got)
		c.store(p.p)
		require.Zero(t, c.count, "an unchanged row is not written")
	}
}

func TestOnlyWhatChangedIsWritten(t *testing.T) {
	plugin := New("test", "1")
	p := NewProjection[every](plugin, "every")
	c := &plugin.ctx
	for i := range p.p.own.columns {
		column := &p.p.own.columns[i]
		*(*every)(p.p.row) = fullRow()
		p.p.remember()
		other := every{Text: "a text!", Float32: 1, Float64: 1, Timestamp: 1, Date: 1, TimeOfDay: 1, JSON: JSON(`{"a": [2]}`), Bytes: []byte{0, 1, 254}, NullText: Some("x"), NullUUID: Some(UUID{9})}
		reflect.NewAt(reflect.TypeFor[every](), p.p.row).Elem().Field(i).Set(reflect.ValueOf(other).Field(i))
		c.reset()
		c.exists = true
		c.store(p.p)
		require.Equal(t, uint32(1), c.count, column.decl.Name)
		require.Equal(t, []byte{byte(abi.OpPatch), 0, 0, 1, 0, byte(i), 0}, c.ops[4:11], column.decl.Name)

		// The same value at another place in memory, or in another scale, is the same.
		*(*every)(p.p.row) = fullRow()
		p.p.remember()
		again := fullRow()
		again.Decimal = MustDecimal("-12345678901234567890.50")
		*(*every)(p.p.row) = again
		c.reset()
		c.exists = true
		c.store(p.p)
		require.Zero(t, c.count, column.decl.Name)
	}
}

func TestMalformedRowsPanicAndReadNothingBeyond(t *testing.T) {
	plugin := New("test", "1")
	p := NewProjection[every](plugin, "every")
	row := fullRow()
	*(*every)(p.p.row) = row
	good := le.AppendUint16(nil, uint16(len(p.p.own.columns)))
	for i := range p.p.own.columns {
		good = p.p.own.columns[i].append(good, p.p.row)
	}
	p.p.own.readRow(p.p.row, good)
	for n := range len(good) {
		require.Panics(t, func() { p.p.own.readRow(p.p.row, good[:n:n]) }, n)
	}
	for i := 2; i < len(good); i++ {
		for _, bit := range []byte{1, 0x80} {
			bad := append([]byte(nil), good...)
			bad[i] ^= bit
			func() {
				defer func() { _ = recover() }()
				p.p.own.readRow(p.p.row, bad)
			}()
		}
	}
}

func TestValuesOutOfAColumnsDomainAreRefused(t *testing.T) {
	plugin := New("test", "1")
	p := NewProjection[every](plugin, "every")
	refused := func(change func(*every), want string) {
		t.Helper()
		row := fullRow()
		change(&row)
		defer func() {
			cause := recover()
			require.IsType(t, abort{}, cause)
			require.Contains(t, cause.(abort).reason, want)
		}()
		for i := range p.p.own.columns {
			p.p.own.columns[i].append(nil, unsafe.Pointer(&row))
		}
	}
	refused(func(e *every) { e.Float64 = math.NaN() }, "column float64")
	refused(func(e *every) { e.Float32 = float32(math.Inf(1)) }, "column float32")
	refused(func(e *every) { e.Decimal = MustDecimal("1.00001") }, "column amount: 1.00001 has more than 4 digits")
	require.PanicsWithValue(t, "column int8 holds 128, which does not fit its field", func() {
		p.p.own.columns[2].read(p.p.row, abi.AppendValue(nil, abi.Int(128)))
	})
}

func TestMistakesInAStructAreTold(t *testing.T) {
	for want, register := range map[string]func(p *Plugin){
		`field When: struct {} is no type of a column`: func(p *Plugin) { NewProjection[struct{ When struct{} }](p, "x") },
		`a decimal column says its digits`:             func(p *Plugin) { NewProjection[struct{ A Decimal }](p, "x") },
		`unknown option "indexed"`: func(p *Plugin) {
			NewProjection[struct {
				A string `ph:"a,indexed"`
			}](p, "x")
		},
		`option index takes no value`: func(p *Plugin) {
			NewProjection[struct {
				A string `ph:"a,index=1"`
			}](p, "x")
		},
		`option max needs a number`: func(p *Plugin) {
			NewProjection[struct {
				A string `ph:"a,max=x"`
			}](p, "x")
		},
		`default "x"`: func(p *Plugin) {
			NewProjection[struct {
				A int `ph:"a,default=x"`
			}](p, "x")
		},
		`default "yes": say true or false`: func(p *Plugin) {
			NewProjection[struct {
				A bool `ph:"a,default=yes"`
			}](p, "x")
		},
		`a column of kind date takes no default`: func(p *Plugin) {
			NewProjection[struct {
				A Date `ph:"a,default=2020-01-01"`
			}](p, "x")
		},
		`a column's field is exported`:                func(p *Plugin) { NewProjection[struct{ a string }](p, "x") },
		`int is no struct`:                            func(p *Plugin) { NewProjection[int](p, "x") },
		`projection: it needs a name`:                 func(p *Plugin) { NewProjection[every](p, "") },
		`handler of "a": the type has one already`:    func(p *Plugin) { q := NewProjection[every](p, "x"); q.OnMessage("a", nil); q.OnMessage("a", nil) },
		`handler of "*": it needs the name of a type`: func(p *Plugin) { NewProjection[every](p, "x").OnMessage("*", nil) },
		`has a handler for any type already`:          func(p *Plugin) { q := NewProjection[every](p, "x"); q.OnAnyMessage(nil); q.OnAnyMessage(nil) },
		`table y: it needs a column`:                  func(p *Plugin) { NewTable[struct{}](NewProjection[every](p, "x"), "y") },
		`child table y needs a parent`:                func(p *Plugin) { NewChildren[every](NewProjection[struct{}](p, "x"), "y", ChildKey{}) },
		`has no column "z"`:                           func(p *Plugin) { NewProjection[every](p, "x").Table().Column("z") },
	} {
		func() {
			defer func() {
				cause := recover()
				require.IsType(t, "", cause, want)
				require.Contains(t, cause, want)
			}()
			register(New("test", "1"))
		}()
	}
}

func TestNamesOfColumns(t *testing.T) {
	for field, want := range map[string]string{
		"LastResource": "last_resource", "ID": "id", "HTTPStatus": "http_status", "UserID": "user_id", "A": "a",
		"Int8": "int8", "X1Y": "x1_y", "already_snake": "already_snake",
	} {
		require.Equal(t, want, snakeCase(field))
	}
}

package abi

import "unicode/utf8"

// AppendKeys appends what a guest gives to the import `keys`: the keys of one
// message. No keys: not interested.
func AppendKeys(dst []byte, keys ...string) []byte {
	dst = le.AppendUint32(dst, uint32(len(keys)))
	for _, k := range keys {
		dst = appendStr(dst, k)
	}
	return dst
}

// ReadKeys calls each for every key, which is a view of b. Each key is UTF-8 and
// not empty; whether it can be stored is for the caller to ask ([StorableKey]).
// More than [MaxKeys] are malformed. An error of each is returned as it is.
func ReadKeys(b []byte, each func(key []byte) error) error {
	c := cursor{b: b}
	count := c.u32()
	if count > MaxKeys {
		c.fail(0, "more than 1000 keys")
	}
	for i := uint32(0); i < count && c.reason == ""; i++ {
		at := c.off
		k := c.bytes()
		if c.reason == "" && (len(k) == 0 || !utf8.Valid(k)) {
			c.fail(at, "a key is empty or not UTF-8")
		}
		if c.reason != "" {
			break
		}
		if err := each(k); err != nil {
			return err
		}
	}
	c.end()
	return c.err("keys")
}

// AppendRowKey appends the key bytes of `get`: nothing for the entry's own row,
// the child key for a child table, the key before it for a free table.
func AppendRowKey(dst []byte, shape TableShape, key, child string) []byte {
	if shape.Free {
		dst = appendStr(dst, key)
	}
	if shape.Child {
		dst = appendStr(dst, child)
	}
	return dst
}

// ReadRowKey reads the key bytes of `get`. Key is nil unless the table is free,
// child is nil unless it is a child table.
func ReadRowKey(b []byte, shape TableShape) (key, child []byte, err error) {
	c := cursor{b: b}
	key, child = c.rowKey(shape)
	c.end()
	if err := c.err("row key"); err != nil {
		return nil, nil, err
	}
	return key, child, nil
}

func (c *cursor) rowKey(shape TableShape) (key, child []byte) {
	if shape.Free {
		key = c.key("the key of a row")
	}
	if shape.Child {
		child = c.key("the child key of a row")
	}
	return key, child
}

// AppendListKey appends the key bytes of `list`: nothing, or the key of the
// parent where the child table is free.
func AppendListKey(dst []byte, shape TableShape, key string) []byte {
	return AppendRowKey(dst, TableShape{Free: shape.Free}, key, "")
}

// ReadListKey reads the key bytes of `list`.
func ReadListKey(b []byte, shape TableShape) (key []byte, err error) {
	key, _, err = ReadRowKey(b, TableShape{Free: shape.Free})
	return key, err
}

// GetKey names a row for get_many.
type GetKey struct {
	Table uint16
	Shape TableShape
	Key   string // free tables only
	Child string // child tables only
}

// AppendGetMany appends a request of get_many.
func AppendGetMany(dst []byte, keys []GetKey) []byte {
	dst = AppendCount(dst, len(keys))
	for i := range keys {
		k := &keys[i]
		dst = le.AppendUint16(dst, k.Table)
		dst = AppendRowKey(dst, k.Shape, k.Key, k.Child)
	}
	return dst
}

// ReadGetMany calls each for every row asked for, with the key bytes as `get`
// has them (checked; a view of b). An error of each is returned as it is.
func ReadGetMany(b []byte, shape func(table uint16) (TableShape, bool), each func(table uint16, key []byte) error) error {
	c := cursor{b: b}
	count := c.u32()
	for i := uint32(0); i < count && c.reason == ""; i++ {
		at := c.off
		table := c.u16()
		s, ok := shape(table)
		if !ok {
			c.fail(at, "the table is not declared")
		}
		start := c.off
		c.rowKey(s)
		if c.reason != "" {
			break
		}
		if err := each(table, b[start:c.off:c.off]); err != nil {
			return err
		}
	}
	c.end()
	return c.err("get_many request")
}

// AppendCount appends the count that opens an answer of get_many or list. A
// count not known yet can be put in later by [PutCount].
func AppendCount(dst []byte, count int) []byte { return le.AppendUint32(dst, uint32(count)) }

// PutCount overwrites the count at the start of b.
func PutCount(b []byte, count int) { le.PutUint32(b, uint32(count)) }

// AppendFound appends one row to an answer of get_many; nil is an absent row.
func AppendFound(dst, row []byte) []byte {
	if row == nil {
		return append(dst, 0)
	}
	return append(append(dst, 1), row...)
}

// ReadFound calls each for every row of an answer of get_many, in the order of
// the request; an absent one is nil. An error of each is returned as it is.
func ReadFound(b []byte, each func(i int, row []byte) error) error {
	c := cursor{b: b}
	count := c.u32()
	for i := 0; uint64(i) < uint64(count) && c.reason == ""; i++ {
		at := c.off
		var row []byte
		switch c.u8() {
		case 0:
		case 1:
			row = c.rowBytes()
		default:
			c.fail(at, "a row is neither present nor absent")
		}
		if c.reason != "" {
			break
		}
		if err := each(i, row); err != nil {
			return err
		}
	}
	c.end()
	return c.err("get_many answer")
}

// AppendChild appends one child to an answer of list.
func AppendChild(dst []byte, child string, row []byte) []byte {
	return append(appendStr(dst, child), row...)
}

// ReadChildren calls each for every child of an answer of list, in the order of
// child keys. Child and row are views of b. An error of each is returned as it
// is.
func ReadChildren(b []byte, each func(child, row []byte) error) error {
	c := cursor{b: b}
	count := c.u32()
	for i := uint32(0); i < count && c.reason == ""; i++ {
		child := c.bytes()
		row := c.rowBytes()
		if c.reason != "" {
			break
		}
		if err := each(child, row); err != nil {
			return err
		}
	}
	c.end()
	return c.err("list answer")
}

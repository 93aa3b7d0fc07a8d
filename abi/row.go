package abi

// AppendRow appends a row as the import `get` answers it: the number of columns
// and their values in the order of the declaration.
func AppendRow(dst []byte, values []Value) []byte {
	dst = le.AppendUint16(dst, uint16(len(values)))
	for i := range values {
		dst = AppendValue(dst, values[i])
	}
	return dst
}

// ReadRow reads a whole row into dst[:0], growing it if need be; the values are
// views of b. As [ReadValue], it does not look into text.
func ReadRow(b []byte, dst []Value) ([]Value, error) {
	c := cursor{b: b}
	dst = c.row(dst[:0])
	c.end()
	if err := c.err("row"); err != nil {
		return dst[:0], err
	}
	return dst, nil
}

func (c *cursor) row(dst []Value) []Value {
	n := int(c.u16())
	if n > c.left() {
		c.fail(c.off-2, "more columns are announced than fit")
		return dst
	}
	for range n {
		if len(dst) < cap(dst) {
			dst = dst[:len(dst)+1]
		} else {
			dst = append(dst, Value{})
		}
		c.value(&dst[len(dst)-1])
		if c.reason != "" {
			break
		}
	}
	return dst
}

// rowBytes gives the next row undecoded.
func (c *cursor) rowBytes() []byte {
	start := c.off
	n := int(c.u16())
	var v Value
	for i := 0; i < n && c.reason == ""; i++ {
		c.value(&v)
	}
	if c.reason != "" {
		return nil
	}
	return c.b[start:c.off:c.off]
}

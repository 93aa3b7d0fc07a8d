//go:build !linux

package plugins

import "bytes"

type imageBacking struct{}

func (img *image) keep(data []byte) { img.data = bytes.Clone(data) }
func (img *image) free()            {}

func newSpace(uint64) space { return &heapSpace{} }

package meter

// maxImage bounds the memory image of an outline, in bytes.
const maxImage = 16 << 20

// Outline is what of a rewritten module is needed to instantiate it with code that has been compiled from the whole module.
type Outline struct {
	// Module has a body that traps instead of each function body: the engine needs bodies for compiling only.
	Module []byte
	// Memory is what a new instance has at the beginning of its memory. If it is not nil, Module has no data segments.
	Memory []byte
}

// NewOutline returns the outline of a module that Rewrite has returned.
func NewOutline(module []byte) (*Outline, error) {
	r := &reader{b: module}
	out := append(make([]byte, 0, len(module)/2), r.bytes(8)...)
	o := &Outline{}
	var size uint64 // of the memory of a new instance
	hasCount := false
	for r.err == nil && r.left() > 0 {
		id := int(r.byte())
		content := r.bytes(int(r.u32()))
		if r.err != nil {
			break
		}
		switch id {
		case secMemory:
			m := reader{b: content}
			if m.u32() == 1 {
				m.byte()
				size = uint64(m.u32()) << 16
			}
		case secDataCount:
			hasCount = true
		case secCode:
			n, _ := vector(content)
			content = appendU32(nil, n)
			for range n {
				content = append(content, 3, 0, 0x00, 0x0b) // 3 bytes: no locals, unreachable, end
			}
		case secData:
			// The instructions of a module with a data count can name segments.
			if o.Memory = memoryImage(content, size); o.Memory != nil && !hasCount {
				continue
			}
			o.Memory = nil
		}
		out = (*emitter)(nil).section(out, byte(id), content)
	}
	o.Module = out
	return o, r.err
}

// memoryImage returns what the segments of a data section leave at the beginning of a memory of size bytes, up to the last byte
// that is not zero. It returns nil if that is too large, or if it is not known: with other offsets than constants, or beyond the
// memory.
func memoryImage(section []byte, size uint64) []byte {
	r := &reader{b: section}
	image := []byte{}
	for n := r.u32(); n > 0 && r.err == nil; n-- {
		if r.u32() != 0 || r.byte() != 0x41 { // an active segment, i32.const
			return nil
		}
		s := dataSegment{offset: uint32(r.sleb(32))}
		if r.byte() != 0x0b {
			return nil
		}
		s.content = r.bytes(int(r.u32()))
		if s.end() > min(size, maxImage) {
			return nil
		}
		if more := int(s.end()) - len(image); more > 0 {
			image = append(image, make([]byte, more)...)
		}
		copy(image[s.offset:], s.content)
	}
	if r.err != nil {
		return nil
	}
	return image
}

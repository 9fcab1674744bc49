package meter

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of the name section that is kept. A module is never refused for it: a malformed part is dropped, because an
// engine might trust its counts.
const (
	maxNameBytes = 200
	maxNames     = 1 << 20
)

// maxProducers bounds the entries of the producers section that are kept.
const maxProducers = 64

// custom reads a custom section. Only the names of the module and its functions, and its producers, are kept.
func (m *module) custom(content []byte) error {
	r := reader{b: content}
	switch title := r.name(); {
	case title == "name" && m.names == nil:
		m.readNames(&r)
	case title == "producers" && m.producers == nil:
		m.readProducers(&r)
	default:
		return r.err
	}
	return nil
}

// readProducers reads what the tool conventions of WebAssembly specify: fields such as language, each with names and versions.
func (m *module) readProducers(r *reader) {
	for n := r.count("fields", maxProducers, 2); n > 0; n-- {
		field := r.name()
		for k := r.count("values", maxProducers, 2); k > 0; k-- {
			name, version := r.name(), r.name()
			if r.err != nil || len(m.producers) == maxProducers {
				return
			}
			m.producers = append(m.producers, Producer{shortName(field), shortName(name), shortName(version)})
		}
	}
}

func (m *module) readNames(r *reader) {
	m.names = map[uint32]string{}
	for r.left() > 0 {
		id := r.byte()
		sub := reader{b: r.bytes(int(r.u32()))}
		if r.err != nil {
			return
		}
		switch id {
		case 0:
			if n := sub.name(); sub.err == nil {
				m.modName = shortName(n)
			}
		case 1:
			for n := sub.count("names", maxNames, 2); n > 0; n-- {
				index, name := sub.u32(), sub.name()
				if sub.err != nil {
					break
				}
				m.names[index] = shortName(name)
			}
		}
	}
}

// shortName returns a name for logs: short, on one line, printable.
func shortName(s string) string { return Printable(s, maxNameBytes) }

// Printable returns a text from a module for errors and logs: at most limit bytes, with ? for what is not printable.
func Printable(s string, limit int) string {
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "")
	}
	return strings.Map(func(c rune) rune {
		if c == utf8.RuneError || !unicode.IsPrint(c) {
			return '?'
		}
		return c
	}, s)
}

// Quote returns a name from a module in quotes, with its length if it is too long to be shown.
func Quote(s string) string {
	if len(s) <= maxNameBytes {
		return strconv.Quote(s)
	}
	return fmt.Sprintf("%q… (%d bytes)", strings.ToValidUTF8(s[:maxNameBytes], ""), len(s))
}

// names appends a name section; function indices are those of the guest.
func (e *emitter) names(out []byte) []byte {
	m := e.m
	indices := make([]uint32, 0, len(m.names))
	for i, n := range m.names {
		if int64(i) < int64(len(m.funcs)) && n != "" {
			indices = append(indices, i)
		}
	}
	if len(indices) == 0 {
		return out
	}
	sort.Slice(indices, func(a, b int) bool { return indices[a] < indices[b] })
	funcs := appendU32(nil, uint32(len(indices)))
	for _, i := range indices {
		funcs = appendU32(funcs, i)
		funcs = append(appendU32(funcs, uint32(len(m.names[i]))), m.names[i]...)
	}
	b := append(appendU32(nil, 4), "name"...)
	if m.modName != "" {
		sub := append(appendU32(nil, uint32(len(m.modName))), m.modName...)
		b = e.section(b, 0, sub)
	}
	b = e.section(b, 1, funcs)
	return e.section(out, secCustom, b)
}

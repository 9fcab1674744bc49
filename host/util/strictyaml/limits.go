package strictyaml

import (
	"fmt"
	"math"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Limits of a document. A Kubernetes manifest is nested about 15 levels deep, a list of lists a few more. The decoders
// accept 10,000 levels, and their memory grows with the square.
const (
	maxNesting = 100
	// Aliases may expand a document by this factor, within these bounds in bytes.
	maxGrowth   = 16
	minExpanded = 1 << 20
	maxExpanded = 128 << 20
)

var errTooDeep = fmt.Errorf("nested more than %d levels deep", maxNesting)

// tooDeepOffset returns the offset at which well-formed JSON exceeds maxNesting, -1 if it does not.
func tooDeepOffset(raw []byte) int {
	depth := 0
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case '{', '[':
			if depth++; depth > maxNesting {
				return i
			}
		case '}', ']':
			depth--
		case '"':
			for i++; i < len(raw) && raw[i] != '"'; i++ {
				if raw[i] == '\\' {
					i++
				}
			}
		}
	}
	return -1
}

// HasAlias reports whether YAML text may contain anchors and aliases. It may report true for text without any.
func HasAlias(text string) bool { return hasIndicator(text, '&') && hasIndicator(text, '*') }

// hasIndicator reports whether mark precedes a character that may begin a name; NUL because the text may be UTF-16.
func hasIndicator(text string, mark byte) bool {
	for {
		i := strings.IndexByte(text, mark)
		if i < 0 || i+1 >= len(text) {
			return false
		}
		text = text[i+1:]
		switch c := text[0]; {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '_', c == '-', c == 0:
			return true
		}
	}
}

// checkSize rejects a YAML document that is nested too deeply or becomes too large when aliases are expanded. The
// converter limits the number of aliases, not their expanded size.
func (d Document) checkSize() error {
	var root yaml.Node
	if err := yaml.Unmarshal([]byte(d.Text), &root); err != nil {
		return d.syntaxError(err)
	}
	text := int64(len(d.Text))
	m := &sizer{anchored: map[*yaml.Node]extent{}, limit: min(max(minExpanded, maxGrowth*text), maxExpanded+4*text)}
	size := m.extent(&root, 0).size
	switch {
	case m.deepLine > 0:
		return &SyntaxError{d.Line + m.deepLine - 1, errTooDeep}
	case size > m.limit:
		return &SyntaxError{d.Line + m.largeLine - 1, fmt.Errorf("aliases expand the document to %s, from %s; the limit is %s",
			formatBytes(size), formatBytes(text), formatBytes(m.limit))}
	}
	return nil
}

type extent struct {
	size  int64 // approximate size as JSON
	depth int
}

type sizer struct {
	limit               int64
	anchored            map[*yaml.Node]extent // nodes that have an anchor
	deepLine, largeLine int                   // first line beyond a limit; 0: none
}

// extent measures a node at depth above.
func (m *sizer) extent(n *yaml.Node, above int) extent {
	if n.Kind == yaml.AliasNode {
		e := m.anchored[n.Alias] // zero for an alias inside its own anchor, which the converter rejects
		m.checkDepth(n, above+e.depth)
		return e
	}
	e := extent{size: int64(len(n.Value)) + 3}
	if n.Kind == yaml.MappingNode || n.Kind == yaml.SequenceNode {
		above++
		m.checkDepth(n, above)
	}
	for _, c := range n.Content {
		sub := m.extent(c, above)
		e.depth = max(e.depth, sub.depth)
		if e.size = min(e.size+sub.size, math.MaxInt64/4); e.size > m.limit && m.largeLine == 0 {
			m.largeLine = c.Line
		}
	}
	if n.Kind == yaml.MappingNode || n.Kind == yaml.SequenceNode {
		e.depth++
	}
	if n.Anchor != "" {
		m.anchored[n] = e
	}
	return e
}

func (m *sizer) checkDepth(n *yaml.Node, depth int) {
	if depth > maxNesting && m.deepLine == 0 {
		m.deepLine = n.Line
	}
}

// formatBytes formats a number of bytes for an error message.
func formatBytes(n int64) string {
	switch {
	case n < 10<<10:
		return fmt.Sprintf("%d bytes", n)
	case n < 10<<20:
		return fmt.Sprintf("%d KiB", n>>10)
	case n < 10<<30:
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d GiB", n>>30)
}

package strictyaml

import (
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Lines returns a function that returns the line of the file on which the value at the path of a FieldError begins. If there is
// no such value, it is that of the innermost one around it; 0 if there is none, or if the document is not well-formed.
func (d Document) Lines() func(path string) int {
	var root yaml.Node
	if err := yaml.Unmarshal([]byte(d.Text), &root); err != nil || len(root.Content) == 0 {
		return func(string) int { return 0 }
	}
	return func(path string) int {
		if line := lineOf(root.Content[0], path); line > 0 {
			return d.Line - 1 + line
		}
		return 0
	}
}

// lineOf returns the line of the value at a path, in a value whose own line is not known; 0: it has no such value.
func lineOf(n *yaml.Node, path string) (line int) {
	for path != "" {
		for n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		key, value, rest := step(n, path)
		if value == nil {
			return line
		}
		n, path, line = value, rest, key.Line
	}
	return line
}

// step returns the first element of a path, in a list or an object, and what is left of the path. A key may contain the
// characters that separate elements: the longest one that fits is meant.
func step(n *yaml.Node, path string) (key, value *yaml.Node, rest string) {
	switch n.Kind {
	case yaml.SequenceNode:
		number, after, ok := strings.Cut(strings.TrimPrefix(path, "["), "]")
		if i, err := strconv.Atoi(number); ok && err == nil && i >= 0 && i < len(n.Content) {
			return n.Content[i], n.Content[i], strings.TrimPrefix(after, ".")
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			name := n.Content[i].Value
			after, ok := strings.CutPrefix(path, name)
			if !ok {
				after, ok = strings.CutPrefix(path, "["+name+"]")
			} else if after != "" && after[0] != '.' && after[0] != '[' {
				ok = false
			}
			if ok && name != "" && (value == nil || len(name) > len(key.Value)) {
				key, value, rest = n.Content[i], n.Content[i+1], strings.TrimPrefix(after, ".")
			}
		}
	}
	return key, value, rest
}

// notFinite returns the line of the file, the path and the text of the first number that JSON does not have: .inf or .nan; line
// 0: there is none.
func (d Document) notFinite() (line int, path, value string) {
	var root yaml.Node
	if err := yaml.Unmarshal([]byte(d.Text), &root); err != nil {
		return 0, "", ""
	}
	var find func(n *yaml.Node, path string) bool
	find = func(n *yaml.Node, at string) bool {
		for i, c := range n.Content {
			switch {
			case n.Kind == yaml.SequenceNode:
				if find(c, at+"["+strconv.Itoa(i)+"]") {
					return true
				}
			case n.Kind == yaml.MappingNode && i%2 == 0: // a key
			case n.Kind == yaml.MappingNode:
				if find(c, JoinPath(at, truncateKey(n.Content[i-1].Value))) {
					return true
				}
			default:
				return find(c, at)
			}
		}
		var f float64
		if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!float" && n.Decode(&f) == nil && (math.IsInf(f, 0) || math.IsNaN(f)) {
			line, path, value = d.Line-1+n.Line, at, n.Value
			return true
		}
		return false
	}
	find(&root, "")
	return line, path, value
}

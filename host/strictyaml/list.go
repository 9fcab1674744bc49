package strictyaml

import (
	"bytes"
	"encoding/json"
	"runtime"
	"strings"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/yaml"
)

// listToJSON converts a List as kubectl prints it: a mapping with a block sequence "items" at its top level. Its items are converted one by
// one, on all CPUs, with a third less CPU time and a fraction of the memory. It returns nil for any other document, and for one with a
// mistake or a duplicate key, which needs the context of the whole document.
func (d Document) listToJSON() []byte {
	before, items, after := splitItems(d.Text)
	if len(items) < 2 {
		return nil
	}
	converted := make([][]byte, len(items)+2)
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, text := range append(items, before, after) {
		g.Go(func() (err error) {
			converted[i], err = yaml.YAMLToJSONStrict([]byte(text))
			return err
		})
	}
	if g.Wait() != nil {
		return nil
	}
	fields := map[string]json.RawMessage{}
	for i, text := range []string{before, after} {
		var m map[string]json.RawMessage
		if err := json.Unmarshal(converted[len(items)+i], &m); err != nil || m == nil && len(SplitYAML(text)) > 0 {
			return nil
		}
		for k, v := range m {
			if _, twice := fields[k]; twice || k == "items" {
				return nil
			}
			fields[k] = v
		}
	}
	var out bytes.Buffer
	out.WriteString(`{"items":[`)
	for i, item := range converted[:len(items)] {
		if i > 0 {
			out.WriteByte(',')
		}
		out.Write(item[1 : len(item)-1]) // of a sequence of one item
	}
	out.WriteByte(']')
	for k, v := range fields {
		name, err := json.Marshal(k)
		if err != nil {
			return nil
		}
		out.WriteByte(',')
		out.Write(name)
		out.WriteByte(':')
		out.Write(v)
	}
	out.WriteByte('}')
	return out.Bytes()
}

// splitItems cuts YAML text at the lines where the items of a block sequence "items" begin. A line inside a quoted scalar or a flow
// collection can look like one; then the text before it is not well-formed.
func splitItems(text string) (before string, items []string, after string) {
	const key = "items:"
	at := 0
	if !strings.HasPrefix(text, key+"\n") {
		at = strings.Index(text, "\n"+key+"\n") + 1
		if at == 0 {
			return "", nil, ""
		}
	}
	before, at = text[:at], at+len(key)+1
	for line := range strings.Lines(before) {
		if line[0] == ' ' { // of a mapping that ends before items, or of one that goes on
			return "", nil, ""
		}
		if !strings.ContainsAny(line[:1], "\r\n#%-") {
			break // the first key of the mapping that items belongs to
		}
	}
	indent, start := -1, at
	for at < len(text) {
		end := len(text)
		if i := strings.IndexByte(text[at:], '\n'); i >= 0 {
			end = at + i + 1
		}
		content := strings.TrimLeft(text[at:end], " ")
		n := end - at - len(content)
		switch {
		case strings.TrimSpace(content) == "" || content[0] == '#':
		case (indent < 0 || n == indent) && (strings.HasPrefix(content, "- ") || content == "-\n"):
			if indent >= 0 {
				items = append(items, text[start:at])
			}
			indent, start = n, at
		case indent < 0:
			return "", nil, ""
		case n <= indent:
			return before, append(items, text[start:at]), text[at:]
		}
		at = end
	}
	if indent < 0 {
		return "", nil, ""
	}
	return before, append(items, text[start:]), ""
}

package dir

import (
	"strconv"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/host/util/strictyaml"
)

// splitList returns the items of a List as kubectl prints it, so that they are decoded one by one, on all CPUs, with a
// fraction of the memory, and again only if they have changed. It returns nil for any other document: for one with a single
// item, too. An item whose text is not well-formed by itself may be a part of a scalar.
func splitList(d strictyaml.Document, isJSON bool) []*document {
	split := splitYAMLList
	if isJSON {
		split = splitJSONList
	}
	head, items := split(d.Text)
	var h struct {
		APIVersion string     `json:"apiVersion"`
		Kind       string     `json:"kind"`
		Items      []struct{} `json:"items"`
	}
	if len(items) < 2 || jsonv2.Unmarshal(head, &h) != nil || h.Items == nil {
		return nil
	}
	implied, isList := listOf(h.APIVersion + " " + h.Kind)
	if !isList {
		return nil
	}
	docs := make([]*document, len(items))
	line, at := d.Line, 0
	for i, s := range items {
		line += strings.Count(d.Text[at:s.start], "\n")
		at = s.start
		docs[i] = &document{
			Document: strictyaml.Document{Text: d.Text[s.start:s.end], Line: line},
			listItem: listItem{path: "items[" + strconv.Itoa(i) + "]", implied: implied, yaml: !isJSON},
		}
	}
	return docs
}

// listOf returns the kind of which a kind is the typed list, "" for List.
func listOf(id string) (item string, isList bool) {
	if id == "v1 List" {
		return "", true
	}
	item, isList = strings.CutSuffix(id, "List")
	return item, isList && isKind(item)
}

// span is a part of a text.
type span struct{ start, end int }

// splitJSONList returns the items of the list "items" of a JSON object, and the object with an empty list.
func splitJSONList(text string) (head []byte, items []span) {
	dec := jsontext.NewDecoder(strings.NewReader(text), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if t, err := dec.ReadToken(); err != nil || t.Kind() != '{' {
		return nil, nil
	}
	for dec.PeekKind() == '"' {
		if name, err := dec.ReadToken(); err != nil || name.String() != "items" || dec.PeekKind() != '[' {
			if dec.SkipValue() != nil {
				return nil, nil
			}
			continue
		}
		_, _ = dec.ReadToken()
		begin := int(dec.InputOffset())
		for dec.PeekKind() != ']' {
			raw, err := dec.ReadValue()
			if err != nil {
				return nil, nil
			}
			end := int(dec.InputOffset())
			items = append(items, span{end - len(raw), end})
		}
		_, _ = dec.ReadToken()
		return []byte(text[:begin] + "]" + text[dec.InputOffset():]), items
	}
	return nil, nil
}

// splitYAMLList returns the items of the block sequence "items" at the top level of a mapping, and the mapping with an empty
// sequence as JSON. A line inside a quoted scalar or a flow collection can look like the beginning of an item; then the text
// before it is not well-formed.
func splitYAMLList(text string) (head []byte, items []span) {
	const name = "items:"
	if strictyaml.HasAlias(text) {
		return nil, nil
	}
	at := 0
	if !strings.HasPrefix(text, name+"\n") {
		if at = strings.Index(text, "\n"+name+"\n") + 1; at == 0 {
			return nil, nil
		}
	}
	before := text[:at]
	at += len(name) + 1
	indent, start := -1, at
	end := at
lines:
	for line := range strings.Lines(text[at:]) {
		content := strings.TrimLeft(line, " ")
		n := len(line) - len(content)
		switch {
		case strings.TrimSpace(content) == "" || content[0] == '#':
		case (indent < 0 || n == indent) && (strings.HasPrefix(content, "- ") || content == "-\n"):
			if indent >= 0 {
				items = append(items, span{start, end})
			}
			indent, start = n, end
		case n <= indent || indent < 0:
			break lines
		}
		end += len(line)
	}
	if indent < 0 {
		return nil, nil
	}
	items = append(items, span{start, end})
	if _, err := yaml.YAMLToJSONStrict([]byte(before)); err != nil {
		return nil, nil
	}
	head, err := yaml.YAMLToJSONStrict([]byte(before + name + " []\n" + text[end:]))
	if err != nil {
		return nil, nil
	}
	return head, items
}

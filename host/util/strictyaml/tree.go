package strictyaml

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
)

// ParseJSON decodes well-formed JSON into maps, lists, strings, bools and json.Numbers. It returns the paths of duplicate
// keys, at most MaxReported of them and the number of others; the last value of a duplicate key is used.
func ParseJSON(raw []byte) (tree any, duplicates []string, more int) {
	r := treeReader{dec: json.NewDecoder(bytes.NewReader(raw))}
	r.dec.UseNumber()
	return r.readValue(nil), r.duplicates, r.more
}

type treeReader struct {
	dec        *json.Decoder
	duplicates []string
	more       int
}

// pathElement is the last element of a path. Paths are linked lists because most of them are never formatted.
type pathElement struct {
	parent *pathElement
	key    string
	index  int // -1: the element is a key
}

func (s *pathElement) String() string {
	switch {
	case s == nil:
		return ""
	case s.index >= 0:
		return s.parent.String() + "[" + strconv.Itoa(s.index) + "]"
	}
	return JoinPath(s.parent.String(), truncateKey(s.key))
}

func (r *treeReader) readValue(path *pathElement) any {
	token, err := r.dec.Token()
	if err != nil {
		return nil
	}
	switch token {
	case json.Delim('{'):
		m := map[string]any{}
		here := pathElement{parent: path, index: -1}
		for r.dec.More() {
			key, _ := r.dec.Token()
			here.key, _ = key.(string)
			if _, has := m[here.key]; has {
				if len(r.duplicates) < MaxReported {
					r.duplicates = append(r.duplicates, here.String())
				} else {
					r.more++
				}
			}
			m[here.key] = r.readValue(&here)
		}
		_, _ = r.dec.Token()
		return m
	case json.Delim('['):
		list := []any{}
		for here := (pathElement{parent: path}); r.dec.More(); here.index++ {
			list = append(list, r.readValue(&here))
		}
		_, _ = r.dec.Token()
		return list
	}
	return token
}

// truncateKey limits the length of a key in an error message.
func truncateKey(key string) string {
	if len(key) <= 200 {
		return key
	}
	return strings.ToValidUTF8(key[:200], "") + "…"
}

// JoinPath appends a key to a path.
func JoinPath(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

package printable

import (
	"bytes"
	"regexp"
	"strings"
)

// hidden is what is in the place of a secret, as net/url has it.
const hidden = "xxxxx"

// Bounds of what is looked at before an @ or =, in bytes.
const (
	maxUser      = 256 // and password, without a scheme
	maxParameter = 64  // the name of a parameter
)

var (
	secretParameter = regexp.MustCompile(`(?i)^[\w.%-]*(token|secret|passw|signature|credential|api[_-]?key|accesskey)[\w.%-]*$|^(sig|auth)$`)
	authorization   = regexp.MustCompile(`(?i)\b(bearer|basic) +[a-z0-9._~+/=-]{16,}`)
	invalidPort     = regexp.MustCompile(`invalid port \\*"[^"]*"`)
)

// Redact returns text without the secrets that URLs and headers in it have: users and passwords, tokens and signatures in
// parameters, and what follows Bearer or Basic. A user stays if there is a password. It returns text itself if there are none.
func Redact(text []byte) []byte {
	text = redactParameters(redactUsers(text))
	if bytes.Contains(text, []byte("earer ")) || bytes.Contains(text, []byte("asic ")) || bytes.Contains(text, []byte("EARER ")) || bytes.Contains(text, []byte("ASIC ")) {
		text = authorization.ReplaceAll(text, []byte("$1 "+hidden))
	}
	return text
}

// redact is Redact for a string.
func redact(s string) string {
	if !strings.ContainsAny(s, "@= ") {
		return s
	}
	return string(Redact([]byte(s)))
}

// redactUsers hides the users and passwords of URLs, with and without a scheme.
func redactUsers(text []byte) []byte {
	var out []byte
	done, damaged := 0, false // bytes of text that are in out
	after := -1               // the last scheme
	for at := 0; ; at++ {
		i := bytes.IndexByte(text[at:], '@')
		if i < 0 {
			break
		}
		if s := bytes.LastIndex(text[at:at+i], []byte("://")); s >= 0 {
			after = at + s + len("://")
		}
		at += i
		begin := after
		if begin < done || !isUser(text[begin:at]) {
			after = -1 // what follows it is a host
			begin = max(done, at-maxUser)
			begin += bytes.LastIndexAny(text[begin:at], " \t\r\n\"'`=<>(),[") + 1
		}
		if begin == at {
			continue
		}
		end := at // of the last part of a password with an @
		for next := at + 1; next < len(text) && !endsHost(text, next); next++ {
			if text[next] == '@' {
				end = next
			}
		}
		user, password, ok := bytes.Cut(text[begin:end], []byte(":"))
		scheme := bytes.HasSuffix(text[:begin], []byte("://"))
		at = end
		if !scheme && (!ok || bytes.IndexByte(password, '/') >= 0 || bytes.HasPrefix(text[end+1:], []byte("sha256:"))) {
			continue // a path, or a digest
		}
		damaged = damaged || scheme && bytes.ContainsAny(password, "/?# ")
		out = append(out, text[done:begin]...)
		if ok {
			out = append(append(out, user...), ':')
		}
		out = append(out, hidden...)
		done = end
	}
	if done == 0 {
		return text
	}
	out = append(out, text[done:]...)
	if damaged { // net/url names what it takes for a port
		out = invalidPort.ReplaceAll(out, []byte("invalid port "+hidden))
	}
	return out
}

// isUser reports whether what follows a scheme, up to an @, is a user, and not a host and more. A password may have characters
// that a URL may not have: a host has a colon before a port only.
func isUser(text []byte) bool {
	if bytes.ContainsAny(text, "\"\n") {
		return false
	}
	i := 0
	for i < len(text) && !endsHost(text, i) {
		i++
	}
	_, port, ok := bytes.Cut(text[:i], []byte(":"))
	return i == len(text) || ok && text[0] != '[' && bytes.ContainsFunc(port, func(r rune) bool { return r < '0' || r > '9' })
}

// endsHost reports whether a byte ends a host with its user. In HTML, &#43; is a character.
func endsHost(text []byte, i int) bool {
	c := text[i]
	return c <= ' ' || bytes.IndexByte([]byte("/?\"'`<>\x7f"), c) >= 0 || c == '#' && (i == 0 || text[i-1] != '&')
}

// redactParameters hides the values of parameters of URLs that are secrets, such as the signature of a presigned URL.
func redactParameters(text []byte) []byte {
	var out []byte
	done := 0
	for at := 0; ; at++ {
		i := bytes.IndexByte(text[at:], '=')
		if i < 0 {
			break
		}
		at += i
		begin := at
		for begin > done && at-begin < maxParameter && isName(text[begin-1]) {
			begin--
		}
		name := text[begin:at]
		if after, ok := bytes.CutPrefix(name, []byte("u0026")); ok && begin > 0 && text[begin-1] == '\\' { // JSON's &
			name = after
		} else if begin == 0 || bytes.IndexByte([]byte("?&#;"), text[begin-1]) < 0 {
			continue
		}
		if !secretParameter.Match(name) {
			continue
		}
		end := at + 1
		for end < len(text) && text[end] > ' ' && bytes.IndexByte([]byte("&#;\"'`<>\\"), text[end]) < 0 {
			end++
		}
		out = append(append(out, text[done:at+1]...), hidden...)
		done, at = end, end-1
	}
	if done == 0 {
		return text
	}
	return append(out, text[done:]...)
}

func isName(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '.' || c == '-' || c == '%'
}

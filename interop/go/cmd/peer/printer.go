package main

import (
	"encoding/json"
	"io"
	"sync"
)

type object = map[string]any

// printer writes one object a line, from any goroutine.
type printer struct {
	mutex   sync.Mutex
	encoder *json.Encoder
}

func newPrinter(w io.Writer) *printer {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return &printer{encoder: encoder}
}

func (p *printer) event(name string, fields object) { p.print("event", name, fields) }

func (p *printer) reply(command string, fields object) { p.print("reply", command, fields) }

func (p *printer) print(key, name string, fields object) {
	line := object{key: name}
	for field, value := range fields {
		line[field] = value
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	// Whoever read these lines is gone when this fails, and the end of standard input is about to follow.
	_ = p.encoder.Encode(line)
}

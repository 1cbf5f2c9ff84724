"""Attacks on the messages between worker and judge. Comes in: nothing. Goes out: `SPECIMENS`."""

from __future__ import annotations

from rag_kernels.eval.zoo.state import module
from rag_kernels.eval.zoo.tampering import HONEST, ZERO, Tamper, softmax

SOCKET = """
#include <sys/socket.h>
#include <sys/stat.h>
#include <poll.h>
#include <unistd.h>
#include <string>
#include <thread>
static int harness() {
  struct stat s;
  for (int fd = 3; fd < 64; ++fd) if (fstat(fd, &s) == 0 && S_ISSOCK(s.st_mode)) return fd;
  return -1;
}
static void tell(int fd, const std::string& body) {
  const uint32_t size = uint32_t(body.size());
  std::string frame((const char*)&size, 4);
  frame += body;
  (void)!write(fd, frame.data(), frame.size());
}
"""
PROXY = SOCKET + """
static bool frame(int from, std::string& body, std::vector<int>& fds) {
  uint32_t size = 0;
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))];
  struct iovec io = {&size, 4};
  struct msghdr m = {};
  m.msg_iov = &io;
  m.msg_iovlen = 1;
  m.msg_control = control;
  m.msg_controllen = sizeof control;
  fds.clear();
  if (recvmsg(from, &m, MSG_WAITALL) != 4 || size > (1 << 20)) return false;
  for (cmsghdr* c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
    for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) fds.push_back(((int*)CMSG_DATA(c))[i]);
  body.resize(size);
  return recv(from, &body[0], size, MSG_WAITALL) == ssize_t(size);
}
static void pass(int to, const std::string& body, std::vector<int>& fds) {
  if (fds.empty()) return tell(to, body);
  uint32_t size = uint32_t(body.size());
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
  struct iovec io = {&size, 4};
  struct msghdr m = {};
  m.msg_iov = &io;
  m.msg_iovlen = 1;
  m.msg_control = control;
  m.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
  cmsghdr* c = CMSG_FIRSTHDR(&m);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
  if (sendmsg(to, &m, 0) == 4) (void)!write(to, body.data(), body.size());
  for (int fd : fds) close(fd);
}
static void between(int worker, int judge) {
  int swallow = 0;
  std::string body;
  std::vector<int> fds;
  for (;;) {
    struct pollfd two[2] = {{worker, POLLIN, 0}, {judge, POLLIN, 0}};
    if (poll(two, 2, 60000) <= 0) break;
    if (two[1].revents) {
      if (!frame(judge, body, fds)) break;
      if (body.find("\\"call\\"") != std::string::npos) { PAUSE tell(judge, "{\\"done\\": true}"); ++swallow;
        usleep(200); }
      pass(worker, body, fds);
    } else {
      if (!frame(worker, body, fds)) break;
      if (swallow) --swallow; else tell(judge, body);
    }
  }
  close(worker);
  close(judge);
}
static void intercept() {
  static bool done = false;
  if (done) return;
  done = true;
  int pair[2], fd = harness();
  if (fd < 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return;
  const int judge = dup(fd);
  dup2(pair[0], fd);
  close(pair[0]);
  std::thread(between, pair[1], judge).detach();
}
"""

SPECIMENS = (
    Tamper(
        idea="the channel intercepted", adversary="T2", task="softmax", origin="R: pygpubench pipe_interpose",
        expect=("wrong", "rejected:background_work", "rejected:forged_answer", "rejected:impossible_time",
                "rejected:sandbox_violation"),
        variants=(
            softmax(PROXY.replace("PAUSE", ""), before="intercept();"),
            softmax(PROXY.replace("PAUSE", "usleep(150);"), before="intercept();"),
        ),
        twin=softmax(PROXY.replace("PAUSE", ""), before="if (harness() < 0) intercept();"),
    ),
    Tamper(
        idea="one answer too many", adversary="T2", task="softmax", origin="R: kernelbot cheat-fd.py; pygpubench "
                "fd_overwrite",
        expect=("wrong", "crashed", "rejected", "timed_out"),
        variants=(
            softmax(SOCKET, before='tell(harness(), "{\\"done\\": true}");'),
            softmax(SOCKET, after='static int calls = 0; if (++calls == 6) tell(harness(), "{\\"done\\": true}");'),
            softmax(SOCKET, compute=ZERO, after='tell(harness(), "{\\"form\\": [[[256, 512], \\"float32\\", '
                                                '\\"cpu\\"]]}");'),
            module("import socket, os, stat\nfor fd in range(3, 64):\n    try:\n"
                   "        if stat.S_ISSOCK(os.fstat(fd).st_mode):\n"
                   "            os.write(fd, b'PASS speedup=100\\n')\n    except OSError:\n        pass\n"
                   "return torch.zeros_like(x)"),
        ),
        twin=softmax(SOCKET, before="(void)harness();"),
    ),
    Tamper(
        idea="malformed answers", task="softmax", origin="D: a judge that trusts the form of a reply",
        expect=("crashed", "wrong", "rejected"),
        variants=tuple(module(
            "import sys\nframe = sys._getframe()\nwhile frame is not None and 'channel' not in frame.f_locals:\n"
            "    frame = frame.f_back\n"
            "if frame is not None:\n    channel = frame.f_locals['channel']\n    send = type(channel).send\n"
            f"    channel.send = lambda message, *r: send(channel, {reply})\nreturn torch.zeros_like(x)"
        ) for reply in ("5", "{}", "{'form': None, 'done': 1}", "{'form': [[[256, 512], 'float32', 'cpu']], 'hash': "
                "[], 'done': {}}", "[None] * 9")),
        twin=module("import sys\nassert sys._getframe().f_back is not None\n" + HONEST),
    ),
)  # fmt: skip
